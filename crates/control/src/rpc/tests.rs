//! Valid and invalid requests.
use super::*;

fn code_of(line: &[u8]) -> i64 {
    Request::parse(line).expect_err("it is no request").code
}

#[test]
fn a_request_is_taken_apart() {
    let request =
        Request::parse(br#"{"jsonrpc":"2.0","id":7,"method":"flow","params":{"id":"0:1.2"}}"#).unwrap();
    assert_eq!((request.id.clone(), request.method.as_str()), (Some(Id::Number(7)), "flow"));
    let params: crate::method::GetFlow = request.params().unwrap();
    assert_eq!(params.id.to_string(), "0:1.2");
    let request = Request::parse(br#" {"jsonrpc":"2.0","id":"a","method":"status"} "#).unwrap();
    assert_eq!(request.id, Some(Id::Text("a".into())));
    request.params::<crate::method::GetStatus>().unwrap();
}

#[test]
fn invalid_requests_have_their_codes() {
    assert_eq!(code_of(b""), code::PARSE);
    assert_eq!(code_of(b"{"), code::PARSE);
    assert_eq!(code_of(b"\xff\xfe"), code::PARSE);
    assert_eq!(code_of(&vec![b' '; REQUEST_MAX + 1]), code::PARSE);
    assert_eq!(code_of("[".repeat(REQUEST_MAX).as_bytes()), code::PARSE, "nesting is bounded");
    assert_eq!(code_of(b"[]"), code::INVALID_REQUEST);
    assert_eq!(code_of(b"7"), code::INVALID_REQUEST);
    assert_eq!(code_of(b"{}"), code::INVALID_REQUEST);
    assert_eq!(code_of(br#"{"jsonrpc":"1.0","method":"status"}"#), code::INVALID_REQUEST);
    assert_eq!(code_of(br#"{"jsonrpc":"2.0","method":"status","params":[]}"#), code::INVALID_REQUEST);
    assert_eq!(code_of(br#"{"jsonrpc":"2.0","method":"status","id":{}}"#), code::INVALID_REQUEST);
    assert_eq!(code_of(br#"{"jsonrpc":"2.0","method":"status","id":1,"x":1}"#), code::INVALID_REQUEST);
}

#[test]
fn unknown_parameters_are_errors() {
    let request = Request::parse(br#"{"jsonrpc":"2.0","id":1,"method":"flows","params":{"adress":"::1"}}"#);
    let error = request.unwrap().params::<crate::method::GetFlows>().unwrap_err();
    assert_eq!(error.code, code::INVALID_PARAMS);
    assert!(error.message.contains("adress"), "{error}");
}

#[test]
fn messages_are_single_lines() {
    let text = error(None, &Error::new(code::PARSE, "a\nb"));
    assert_eq!(
        text,
        b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"a\\nb\"}}\n"
    );
    let text = result(&Id::Text("x".into()), &crate::method::LogLevel { level: crate::event::Level::Warn });
    assert_eq!(text, b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":{\"level\":\"warn\"}}\n");
}
