//! A client's line on the control socket: accepted or refused, never with a panic. An accepted line survives
//! writing and parsing unchanged, and so do the parameters of its method.

use brodo_control::method::{
    AddForward, GetCounters, GetFlow, GetFlows, GetHello, GetStatus, ListForwards, Method, RemoveForward,
    SetLogLevel, StartCapture, StopCapture, Subscribe,
};
use brodo_control::rpc::{self, REQUEST_MAX, Request, code};
use std::fmt::Debug;

/// Round trip of the parameters of a method.
fn params<M: Method + PartialEq + Debug>(request: &Request) {
    if request.method != M::NAME {
        return;
    }
    match request.clone().params::<M>() {
        Ok(params) => {
            let line = rpc::request(1, M::NAME, &params);
            let again = Request::parse(&line[..line.len() - 1]).expect("our own request");
            assert_eq!(again.params::<M>().expect("our own parameters"), params);
        }
        Err(error) => assert_eq!(error.code, code::INVALID_PARAMS),
    }
}

/// The body.
pub fn run(line: &[u8]) {
    let request = match Request::parse(line) {
        Ok(request) => request,
        Err(error) => {
            assert!(matches!(error.code, code::PARSE | code::INVALID_REQUEST), "{error:?}");
            let reply = rpc::error(None, &error);
            let end = reply.iter().position(|&byte| byte == b'\n');
            assert_eq!(end, Some(reply.len() - 1), "a reply is a line");
            return;
        }
    };
    assert!(line.len() <= REQUEST_MAX);
    let text = serde_json::to_vec(&request).expect("a request can be written");
    // A number that is too large for an integer is read as one near it, and not as the same each time.
    let again = Request::parse(&text).ok().map(|again| (again.id, again.method));
    let same = Some((request.id.clone(), request.method.clone())).filter(|_| text.len() <= REQUEST_MAX);
    assert_eq!(again, same);
    params::<GetHello>(&request);
    params::<GetStatus>(&request);
    params::<GetCounters>(&request);
    params::<GetFlows>(&request);
    params::<GetFlow>(&request);
    params::<ListForwards>(&request);
    params::<AddForward>(&request);
    params::<RemoveForward>(&request);
    params::<StartCapture>(&request);
    params::<StopCapture>(&request);
    params::<SetLogLevel>(&request);
    params::<Subscribe>(&request);
}
