//! ClientHellos of simulated clients: the handshake message, and the record around it.

/// A ClientHello with this name (none if it is empty), and further extensions.
pub fn client_hello(name: &[u8], further: &[(u16, &[u8])]) -> Vec<u8> {
    let mut extensions = Vec::new();
    let mut extension = |kind: u16, data: &[u8]| {
        extensions.extend(kind.to_be_bytes());
        extensions.extend((data.len() as u16).to_be_bytes());
        extensions.extend(data);
    };
    if !name.is_empty() {
        let length = (name.len() as u16).to_be_bytes();
        let list = ((name.len() + 3) as u16).to_be_bytes();
        extension(0, &[&list[..], &[0], &length, name].concat());
    }
    for (kind, data) in further {
        extension(*kind, data);
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    message
}

/// A TLS record of this type.
pub fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [a, b] = (content.len() as u16).to_be_bytes();
    [&[kind, 3, 1, a, b], content].concat()
}
