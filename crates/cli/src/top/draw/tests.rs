//! Screens against their committed copies, and terminals too small to draw on.
//!
//! `BRODO_BLESS=1 cargo test -p brodo --bin brodo top` writes the copies anew. The rewritten files belong to
//! the commit of the change.

use super::super::model::tests::{after, sample};
use super::super::screen::Outcome;
use super::*;
use brodo_control::flow::{FlowRef, TuningStep};
use brodo_control::method::FlowDetail;
use brodo_control::policy::{Refusal, Ruling, Stage};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::path::Path;

/// The picture in letters.
fn picture(model: &Model, screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(|frame| draw(frame, model, screen)).expect("memory does not fail");
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let letters: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        letters.trim_end().to_owned() + "\n"
    };
    (0..height).map(line).collect()
}

/// Compares with the committed copy, or writes that anew if asked to.
#[track_caller]
fn assert_committed(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("BRODO_BLESS").is_some() {
        return std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(committed, text, "{}: BRODO_BLESS=1 writes it anew", path.display());
}

fn press(screen: &mut Screen, model: &mut Model, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            'v' => KeyCode::Down,
            other => KeyCode::Char(other),
        };
        if let Outcome::LookAt(flow) = screen.key(KeyEvent::new(code, KeyModifiers::NONE), model) {
            model.look_at(flow);
        }
    }
}

/// The download in detail, for half a minute, with decisions before and since.
fn with_details() -> (Model, Screen) {
    let (mut model, mut screen) = (after(10), Screen::default());
    press(&mut screen, &mut model, "\n");
    for at_s in 11..=40_u64 {
        let mut next = sample(at_s);
        let limit = if at_s < 20 { 562 << 10 } else { 2 << 20 };
        if let Some(tcp) = &mut next.flows[0].tcp {
            tcp.to_guest.limit = limit;
            tcp.to_guest.in_flight = limit / 8 * (at_s % 7) as u32;
        }
        let step = |second: u64, from: u32, to: u32, cause: &str| TuningStep {
            ago_us: (at_s - second) * 1_000_000,
            from_guest: false,
            from,
            to,
            cause: cause.into(),
            per_rtt: to / 2,
            rtt_us: 20,
        };
        let mut history = vec![
            step(4, 64 << 10, 154 << 10, "hit"),
            step(5, 154 << 10, 275 << 10, "hit"),
            step(6, 275 << 10, 562 << 10, "probe"),
        ];
        if at_s >= 20 {
            history.push(step(20, 562 << 10, 2 << 20, "hit"));
        }
        next.detail = Some(FlowDetail { flow: next.flows[0].clone(), history });
        model.update(next);
    }
    (model, screen)
}

#[test]
fn flows() {
    for (width, height) in [(40, 10), (80, 24), (132, 40), (180, 50)] {
        let mut screen = Screen::default();
        let text = picture(&after(20), &mut screen, width, height);
        assert_committed(&format!("flows-{width}x{height}"), &text);
    }
}

#[test]
fn a_screen_without_colours_keeps_its_other_styles() {
    let styles = |plain| {
        let (mut model, mut screen) = with_details();
        model.lost = Some("brodo 4711 has ended".to_owned());
        screen.plain = plain;
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal in memory");
        terminal.draw(|frame| draw(frame, &model, &mut screen)).expect("memory does not fail");
        let cells = terminal.backend().buffer().content();
        let coloured = cells.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count();
        (coloured, cells.iter().map(|cell| cell.modifier).collect::<Vec<_>>())
    };
    let ((coloured, modifiers), plain) = (styles(false), styles(true));
    assert!(coloured > 0 && modifiers.iter().any(|modifier| modifier.contains(Modifier::BOLD)));
    assert_eq!(plain.0, 0);
    assert!(plain.1 == modifiers, "bold, dim and reversed letters stay so");
}

#[test]
fn a_narrow_screen_leaves_room_for_the_peer() {
    for width in 30..80 {
        let text = picture(&after(20), &mut Screen::default(), width, 12);
        let row =
            text.lines().find(|line| line.contains("a-very")).unwrap_or_else(|| panic!("{width}: {text}"));
        let peer = row.split_whitespace().nth(1).map_or(0, |peer| peer.chars().count());
        assert!(peer >= 16 && text.contains("up 1h00"), "{width}: {text}");
    }
}

#[test]
fn details_of_a_flow() {
    for (width, height) in [(80, 24), (132, 40)] {
        let (model, mut screen) = with_details();
        let text = picture(&model, &mut screen, width, height);
        assert_committed(&format!("detail-{width}x{height}"), &text);
    }
    let (mut model, mut screen) = with_details();
    let mut last = sample(41);
    last.flows.clear();
    model.update(last);
    press(&mut screen, &mut model, "\t");
    assert_committed("detail-ended-80x24", &picture(&model, &mut screen, 80, 24));
}

#[test]
fn details_of_a_conversation_without_tcp() {
    let (mut model, mut screen) = (after(10), Screen::default());
    press(&mut screen, &mut model, "/udp\n\n");
    (11..15).for_each(|at_s| model.update(sample(at_s)));
    assert_committed("detail-udp-80x24", &picture(&model, &mut screen, 80, 24));
}

/// Refusals of each kind.
fn refusals() -> Vec<Refusal> {
    use Ruling::{Deny, WouldDeny};
    let refusal = |count, stage, verdict, reason: &str, remote: Option<&str>, name: Option<&str>| Refusal {
        count,
        stage,
        verdict,
        reason: reason.to_owned(),
        protocol: remote.map(|_| "tcp".to_owned()),
        remote: remote.map(|remote| remote.parse().expect("an address")),
        name: name.map(str::to_owned),
        allow: None,
    };
    let allowed = |rule: &str, refusal: Refusal| Refusal { allow: Some(rule.to_owned()), ..refusal };
    let (evil, to) = (Some("a\u{1b}[2J.evil.example"), Some("192.0.2.4:443"));
    let asked = refusal(12, Stage::Question, Deny, "policy question", None, Some("static.example.org"));
    let opened = refusal(3, Stage::Open, WouldDeny, "policy not-given-by-dns", to, None);
    vec![
        refusal(1, Stage::Open, Deny, "floor link-local", Some("169.254.169.254:80"), None),
        refusal(2, Stage::Question, Deny, "deny *.evil.example", None, evil),
        refusal(40, Stage::Gate, Deny, "policy name", to, Some("other.example")),
        allowed("tcp://192.0.2.4:443", opened),
        allowed("static.example.org", asked),
    ]
}

#[test]
fn refusals_of_the_policy() {
    let (mut model, mut screen) = (after(20), Screen::default());
    press(&mut screen, &mut model, "p");
    assert!(picture(&model, &mut screen, 80, 24).contains("no policy has refused anything"));
    model.refusals = refusals();
    assert_committed("refusals-80x24", &picture(&model, &mut screen, 80, 24));
    press(&mut screen, &mut model, "p");
    assert!(picture(&model, &mut screen, 80, 24).contains("p refusals"));
}

#[test]
fn help_filter_and_an_instance_that_has_ended() {
    let (mut model, mut screen) = (after(20), Screen::default());
    press(&mut screen, &mut model, "?");
    assert_committed("help-80x24", &picture(&model, &mut screen, 80, 24));
    press(&mut screen, &mut model, "q/example");
    model.lost = Some("brodo 4711 has ended".into());
    assert_committed("lost-80x24", &picture(&model, &mut screen, 80, 24));
    let waiting = picture(&Model::default(), &mut Screen::default(), 80, 24);
    assert_committed("waiting-80x24", &waiting);
}

#[test]
fn the_documentation_shows_the_picture_as_it_is() {
    let page = include_str!("../../../../../docs/src/top.md");
    for name in ["flows-80x24", "detail-80x24", "refusals-80x24"] {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots").join(format!("{name}.txt"));
        let committed = std::fs::read_to_string(&path).expect("committed");
        assert!(page.contains(committed.trim_end()), "docs/src/top.md does not show {name}.txt");
    }
}

#[test]
fn no_size_and_no_content_is_too_much() {
    let (mut model, mut screen) = with_details();
    for (width, height) in
        (1..140).step_by(7).flat_map(|width| (1..45).step_by(4).map(move |height| (width, height)))
    {
        model.refusals = refusals();
        for (view, help) in
            [(View::Flows, false), (View::Detail, false), (View::Refusals, false), (View::Flows, true)]
        {
            (screen.view, screen.help) = (view, help);
            picture(&model, &mut screen, width, height);
        }
    }
    // Extreme values, and names with control characters.
    let mut next = sample(50);
    let worst = &mut next.flows[1];
    worst.id = FlowRef { worker: u32::MAX, index: u32::MAX, generation: u32::MAX };
    worst.name = Some("\u{1b}[2J\u{9b}31m\r\n\u{202e}名前\u{200b}".repeat(50));
    (worst.age_us, worst.idle_us, worst.rtt_us) = (u64::MAX, u64::MAX, Some(u64::MAX));
    worst.to_guest.bytes = u64::MAX / 2;
    if let Some(tcp) = &mut worst.tcp {
        (tcp.to_guest.limit, tcp.to_guest.limit_max, tcp.to_guest.in_flight) = (u32::MAX, 0, u32::MAX);
        tcp.to_guest.limited_by = "\u{1b}c".into();
        tcp.to_guest.limited_us.clear();
    }
    let id = worst.id;
    model.update(next);
    model.look_at(Some(id));
    model.refusals = refusals();
    for view in [View::Flows, View::Detail, View::Refusals] {
        screen.view = view;
        let text = picture(&model, &mut screen, 132, 40);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    }
}
