//! Pipes: kept, given up, and large as far as there are not many.

use super::*;

#[test]
fn pipes_at_rest_are_closed_and_made_anew() {
    let mut pipes = Pipes::new(PIPES_LARGE);
    let (first, second) = (pipes.take().expect("a pipe"), pipes.take().expect("another"));
    pipes.put(first);
    pipes.give_up_idle();
    assert_eq!((pipes.made, pipes.idle.len()), (1, 0));
    pipes.put(second);
    assert!(pipes.take().is_some() && pipes.take().is_some());
    assert_eq!(pipes.made, 2);
}

#[test]
fn large_pipes_are_shared() {
    let size = |sharers| {
        let mut pipes = Pipes::new(PIPES_LARGE / sharers);
        let made: Vec<_> = (0..PIPES_LARGE).map(|_| pipes.take().expect("pipe")).collect();
        let large = |pipe: &&Pipe| rustix::pipe::fcntl_getpipe_size(&pipe.to).expect("size") == PIPE_BYTES;
        made.iter().filter(large).count()
    };
    assert_eq!([1, 2, 4].map(size), [16, 8, 4]);
}
