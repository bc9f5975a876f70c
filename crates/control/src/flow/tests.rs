//! Flow ids as text, and protocol names of later versions.
use super::*;

#[test]
fn a_handle_is_its_text() {
    let flow = FlowRef { worker: 1, index: 42, generation: u32::MAX };
    assert_eq!(flow.to_string().parse(), Ok(flow));
    assert_eq!(serde_json::to_string(&flow).unwrap(), "\"1:42.4294967295\"");
    for wrong in ["", "1", "1:2", "1.2:3", "-1:2.3", "1:2.3.4", "1:2.4294967296"] {
        assert!(wrong.parse::<FlowRef>().is_err(), "{wrong}");
    }
}

#[test]
fn a_protocol_of_the_future_is_another() {
    assert_eq!(serde_json::from_str::<Protocol>("\"sctp\"").unwrap(), Protocol::Other);
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Echo] {
        assert_eq!(protocol.name().parse(), Ok(protocol));
        assert_eq!(serde_json::to_value(protocol).unwrap(), protocol.name());
    }
}
