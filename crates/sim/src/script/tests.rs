//! Script lines become frames and expectations, and expectations can fail.

use super::*;

/// The frame of a script line is the one described, without the stack.
#[test]
fn a_line_becomes_the_frame_it_says() {
    for v6 in [false, true] {
        let mut t = Script::new(Setup { v6, guest_isn: Some(0xffff_ffff), ..Setup::default() });
        let frame = t.frame("SYN win=1000 mss=1460 wscale=3 sackok");
        let Ok(ParsedFrame::Tcp(syn)) = packet::parse(&frame) else { panic!("not TCP") };
        assert_eq!((syn.flags, syn.seq, syn.window), (flags::SYN, 0xffff_ffff, 1000));
        assert_eq!((syn.mss, syn.wscale, syn.sack_ok), (Some(1460), Some(3), true));
        let frame = t.frame("ACK ack=5 data=10 win=800");
        let Ok(ParsedFrame::Tcp(data)) = packet::parse(&frame) else { panic!("not TCP") };
        assert_eq!((data.seq, data.ack, data.window), (0, 5, 100));
        assert_eq!(data.data, t.up_pattern().bytes(0, 10));
        let frame = t.frame("ACK seq=6 data=10");
        let Ok(ParsedFrame::Tcp(again)) = packet::parse(&frame) else { panic!("not TCP") };
        assert_eq!(again.data[..5], data.data[5..], "the same bytes at the same place");
        assert_eq!(again.data[5..], t.up_pattern().bytes(10, 5));
    }
}

#[test]
fn udp_and_echo_lines() {
    for v6 in [false, true] {
        let mut t = Script::new(Setup { v6, ..Setup::default() });
        let frame = t.frame("UDP sport=1000 dport=53 data=40");
        let Ok(ParsedFrame::Udp(udp)) = packet::parse(&frame) else { panic!("not UDP") };
        assert_eq!((udp.src.port(), udp.dst.port(), udp.data.len()), (1000, 53, 40));
        let frame = t.frame("ICMP echo-request id=9 seq=3 data=56");
        let Ok(ParsedFrame::Icmp(echo)) = packet::parse(&frame) else { panic!("not ICMP") };
        assert_eq!((echo.word, echo.body.len()), (0x0009_0003, 56));
    }
}

#[test]
#[should_panic(expected = "seen:     nothing")]
fn an_expectation_that_is_not_met_fails() {
    let mut t = Script::v4();
    t.expect("SYN|ACK");
}
