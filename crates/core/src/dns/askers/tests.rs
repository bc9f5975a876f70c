//! The query to be replaced, as ports open queries and get answers.

use super::*;

fn port(port: u16) -> Endpoint {
    Endpoint::new([10, 0, 2, 15].into(), port)
}

fn flow(index: u32) -> FlowId {
    FlowId { index, generation: 0 }
}

#[test]
fn the_oldest_question_of_the_port_with_the_most_goes_first() {
    let mut askers = Askers::default();
    assert_eq!(askers.first_to_go(), None);
    let patient = askers.add(port(1), flow(1));
    let greedy = [0; 3].map(|_| askers.add(port(2), flow(2)));
    // Joined to a question that another port's flow has.
    let joined = askers.add(port(3), flow(2));
    assert_eq!(askers.len(), 5);
    assert_eq!(askers.first_to_go(), Some((greedy[0], flow(2))));
    askers.remove(greedy[0]);
    assert_eq!(askers.first_to_go(), Some((greedy[1], flow(2))));
    askers.remove(greedy[2]);
    // All ports have one; the oldest query is replaced.
    assert_eq!(askers.first_to_go(), Some((patient, flow(1))));
    askers.remove(patient);
    assert_eq!(askers.first_to_go(), Some((greedy[1], flow(2))));
    askers.remove(greedy[1]);
    assert_eq!(askers.first_to_go(), Some((joined, flow(2))));
    askers.remove(joined);
    askers.remove(joined);
    assert!(askers.len() == 0 && askers.ports.is_empty() && askers.ranking.is_empty());
}
