//! Seeds of promoted flows: any fields, and a connection that is given back with them.
//!
//! The kernel socket of a promoted flow has talked to the guest, and another process has read its state. So
//! the fields of a returned seed, and the bytes beside it, may be anything. A seed is either refused, or it
//! is one that a connection can have; and a connection that is given it goes on or is reset, within the
//! budget of memory, and can then be spoken to. Which streams have ended before, which FINs are said to have
//! come, and the guest's segments that follow come from the input too.

use brodo_core::carried::CarriedProgress;
use brodo_core::config::{Bulk, BulkBounds, Config};
use brodo_core::flow::FlowId;
use brodo_core::promotion::{Fins, OurFin, PromotionOutcome, ReturnReason, Returned};
use brodo_core::promotion::{SeedFields, TcpSeed, WindowScales};
use brodo_core::time::Duration;
use brodo_sim::driver::SimDriver;
use brodo_sim::host::promotions::Request;
use brodo_sim::link::to_stack;
use brodo_sim::packet::{TcpSegment, flags};
use brodo_sim::script::{Script, Setup};

/// Numbers of an input: each byte string is one, and zeros follow the last.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Mostly small: the sequence space's interesting places are near the right ones.
    fn near(&mut self, right: u32) -> u32 {
        match self.byte() {
            0..200 => right,
            200..225 => right.wrapping_add(self.byte().into()),
            225..245 => right.wrapping_sub(self.byte().into()),
            _ => u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]),
        }
    }

    fn len(&mut self) -> usize {
        match self.byte() {
            0..100 => 0,
            100..220 => self.byte().into(),
            _ => usize::from(self.byte()) * 700,
        }
    }
}

/// A script with a promoted flow, and its seed.
fn promoted() -> (Script, FlowId, TcpSeed) {
    let bulk_bounds = BulkBounds { bytes: 1, rate: 0, period: Duration::ZERO, ..BulkBounds::default() };
    let config =
        Config { mtu: 1500, memory: 128 << 10, bulk: Bulk::Kernel, bulk_bounds, ..Config::default() };
    let mut t = Script::new(Setup { config, ..Setup::default() });
    t.driver.host.promotions().allow_all();
    t.establish();
    t.guest("ACK data=10");
    t.advance_ms(10);
    let Some(Request::Promote { flow, seed, .. }) = t.driver.host.promotions().take().pop_front() else {
        panic!("the connection is promoted");
    };
    t.driver.io(|stack, io| {
        stack.promotion(io, flow, PromotionOutcome::Made);
        stack.promotion(io, flow, PromotionOutcome::Confirmed);
        stack.recall(io, flow, ReturnReason::Steering);
    });
    (t, flow, *seed)
}

/// Fields near those of a seed.
fn fields(numbers: &mut Numbers<'_>, seed: &TcpSeed) -> SeedFields {
    let right = *seed.fields();
    let scales = right.scales.unwrap_or(WindowScales { snd: 0, rcv: 0 });
    let mut fields = SeedFields {
        snd_una: numbers.near(right.snd_una),
        snd_nxt: numbers.near(right.snd_nxt),
        snd_wnd: numbers.near(right.snd_wnd),
        wnd_max: numbers.near(right.wnd_max),
        snd_wl1: numbers.near(right.snd_wl1),
        rcv_nxt: numbers.near(right.rcv_nxt),
        rcv_wup: numbers.near(right.rcv_wup),
        rcv_wnd: numbers.near(right.rcv_wnd),
        mss: numbers.near(right.mss.into()) as u16,
        scales: Some(WindowScales {
            snd: numbers.near(scales.snd.into()) as u8,
            rcv: numbers.near(scales.rcv.into()) as u8,
        }),
        sack: numbers.near(right.sack.into()) & 1 == 1,
        ..right
    };
    if numbers.byte() > 250 {
        fields.guest.set_port(numbers.byte().into());
    }
    fields
}

/// Any FINs.
fn fins(numbers: &mut Numbers<'_>) -> Fins {
    let ours = match numbers.byte() & 3 {
        0 => OurFin::None,
        1 => OurFin::Unsent,
        2 => OurFin::Sent,
        _ => OurFin::Acknowledged,
    };
    Fins { guest: numbers.byte() & 1 == 1, ours }
}

/// Checks a seed of the input, and a connection that comes back with it.
pub fn run(data: &[u8]) {
    let mut numbers = Numbers(data);
    let (mut t, flow, seed) = promoted();
    let Ok(returned) = TcpSeed::new(fields(&mut numbers, &seed)) else { return };
    assert!(returned.window() <= returned.fields().rcv_wnd, "the window is a part of the one advertised");
    let (to_guest, to_host) = (vec![1; numbers.len()], vec![2; numbers.len()]);
    let (ended, fins) = (numbers.byte(), fins(&mut numbers));
    let progress = CarriedProgress {
        initiator_finished: ended & 1 == 1,
        responder_finished: ended & 2 == 2,
        ..CarriedProgress::default()
    };
    let returned = Returned { seed: &returned, fins, to_guest: &to_guest, to_host: &to_host };
    let driver = &mut t.driver;
    driver.io(|stack, io| {
        stack.carried_progress(io, flow, &progress);
        stack.returned(io, flow, &returned);
    });
    assert_eq!(driver.stack.promoted(), 0);
    converse(driver, &mut numbers, returned.seed.fields());
    assert!(driver.stack.memory_used() <= driver.stack.memory_budget());
}

/// Segments of the guest's near the seed's numbers, and time. The observer's rules do not hold for a guest
/// that has not sent what the seed says, so the stack's frames are only taken from the link.
fn converse(driver: &mut SimDriver, numbers: &mut Numbers<'_>, seed: &SeedFields) {
    for _ in 0..4 {
        let bits = flags::ACK | (numbers.byte() & (flags::FIN | flags::RST | flags::SYN));
        let segment = TcpSegment {
            flags: bits,
            seq: numbers.near(seed.rcv_nxt),
            ack: numbers.near(seed.snd_nxt),
            window: numbers.near(1000) as u16,
            data: vec![3; numbers.len() % 1400],
            ..TcpSegment::new(seed.guest, seed.remote)
        };
        let frame = segment.to_frame(to_stack(driver.stack.config().mac.0));
        driver.io(|stack, io| {
            stack.frame(io, brodo_core::link::RxMeta::default(), &frame);
            stack.serve(io);
            stack.flush(io);
        });
        while driver.link.take().is_some() {}
    }
}
