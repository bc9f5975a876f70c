//! Sequences of keys and the resulting screens.

use super::super::model::tests::{after, sample};
use super::*;

fn press(screen: &mut Screen, model: &Model, code: KeyCode) -> Outcome {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE), model)
}

/// The number of the chosen flow, which Enter would open.
fn chosen(screen: &mut Screen, model: &Model) -> u32 {
    let rows = model.rows(screen.sort, screen.reversed, &screen.filter);
    let ids: Vec<_> = rows.iter().map(|row| row.flow.id).collect();
    ids[screen.settle(&ids).expect("rows")].index
}

#[test]
fn the_choice_moves_and_stays_with_its_flow() {
    let (model, mut screen) = (after(5), Screen::default());
    // In order: 0, 2, 6, 4, 7, 3, 5.
    assert_eq!(chosen(&mut screen, &model), 0);
    for (code, expected) in [
        (KeyCode::Down, 2),
        (KeyCode::Char('j'), 6),
        (KeyCode::Up, 2),
        (KeyCode::End, 5),
        (KeyCode::Down, 5),
        (KeyCode::PageUp, 0),
        (KeyCode::Char('k'), 0),
        (KeyCode::PageDown, 5),
        (KeyCode::Home, 0),
        (KeyCode::Down, 2),
        (KeyCode::Char('r'), 2),
        (KeyCode::Char('2'), 2),
        (KeyCode::Char('s'), 2),
        (KeyCode::Char('<'), 2),
        (KeyCode::F(5), 2),
    ] {
        assert_eq!(press(&mut screen, &model, code), Outcome::Draw);
        assert_eq!(chosen(&mut screen, &model), expected, "{code:?}");
    }
    assert_eq!(screen.sort, Sort::Bytes);
}

#[test]
fn the_details_of_a_flow_are_left_with_its_instance() {
    for help in [false, true] {
        let (mut model, mut screen) = (after(5), Screen::default());
        let Outcome::LookAt(flow) = press(&mut screen, &model, KeyCode::Enter) else { panic!("no flow") };
        model.look_at(flow);
        if help {
            press(&mut screen, &model, KeyCode::Char('?'));
        }
        model.update(sample(6));
        assert!(!screen.leave_lost_flow(&model));
        let mut other = sample(7);
        other.status.pid += 1;
        model.update(other);
        assert!(screen.leave_lost_flow(&model) && !screen.leave_lost_flow(&model));
        assert_eq!((screen.view, screen.help), (View::Flows, help));
    }
}

#[test]
fn the_flow_in_the_place_of_an_ended_one_is_chosen() {
    let (mut model, mut screen) = (after(5), Screen::default());
    press(&mut screen, &model, KeyCode::End);
    let mut next = sample(6);
    next.flows.retain(|flow| flow.id.index != 5);
    model.update(next);
    assert_eq!(chosen(&mut screen, &model), 3);
    let mut none = sample(7);
    none.flows.clear();
    model.update(none);
    for code in [KeyCode::Down, KeyCode::Enter, KeyCode::End, KeyCode::PageDown] {
        assert_eq!(press(&mut screen, &model, code), Outcome::Draw);
    }
    assert_eq!(screen.view, View::Flows);
}

#[test]
fn enter_shows_details_and_escape_leaves_them() {
    let (model, mut screen) = (after(5), Screen::default());
    press(&mut screen, &model, KeyCode::Down);
    let Outcome::LookAt(Some(id)) = press(&mut screen, &model, KeyCode::Enter) else { panic!("no details") };
    assert_eq!((id.index, screen.view), (2, View::Detail));
    press(&mut screen, &model, KeyCode::Tab);
    assert!(screen.other_direction);
    press(&mut screen, &model, KeyCode::Char('?'));
    assert_eq!((screen.view, screen.help), (View::Detail, true));
    assert_eq!(press(&mut screen, &model, KeyCode::Char('q')), Outcome::Draw);
    assert_eq!((screen.view, screen.help), (View::Detail, false));
    assert_eq!(press(&mut screen, &model, KeyCode::Esc), Outcome::LookAt(None));
    assert_eq!(screen.view, View::Flows);
}

#[test]
fn a_filter_is_typed_kept_and_cleared() {
    let (model, mut screen) = (after(5), Screen::default());
    press(&mut screen, &model, KeyCode::Char('/'));
    for letter in "udpq".chars() {
        assert_eq!(press(&mut screen, &model, KeyCode::Char(letter)), Outcome::Draw);
    }
    press(&mut screen, &model, KeyCode::Backspace);
    press(&mut screen, &model, KeyCode::Enter);
    assert_eq!((screen.filter.as_str(), screen.typing), ("udp", false));
    assert_eq!(chosen(&mut screen, &model), 5);
    press(&mut screen, &model, KeyCode::Esc);
    assert_eq!(screen.filter, "");
    press(&mut screen, &model, KeyCode::Char('/'));
    for _ in 0..1000 {
        press(&mut screen, &model, KeyCode::Char('ä'));
    }
    assert_eq!(screen.filter.chars().count(), FILTER_MAX);
    press(&mut screen, &model, KeyCode::Esc);
    assert_eq!((screen.filter.as_str(), screen.typing), ("", false));
}

#[test]
fn q_and_ctrl_c_quit_from_everywhere() {
    let model = after(2);
    for keys in ["", "/", "?", "\n"] {
        let mut screen = Screen::default();
        for key in keys.chars() {
            press(&mut screen, &model, if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) });
        }
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(control_c, &model), Outcome::Quit, "{keys}");
    }
    assert_eq!(press(&mut Screen::default(), &model, KeyCode::Char('q')), Outcome::Quit);
}

#[test]
fn scrolling_keeps_the_choice_in_sight() {
    let mut screen = Screen::default();
    assert_eq!(screen.scroll(0, 10, 100), 0);
    assert_eq!(screen.scroll(9, 10, 100), 0);
    assert_eq!(screen.scroll(10, 10, 100), 1);
    assert_eq!(screen.scroll(99, 10, 100), 90);
    assert_eq!(screen.scroll(95, 10, 100), 90);
    assert_eq!(screen.scroll(50, 10, 100), 50);
    // The screen becomes larger, and flows fewer.
    assert_eq!(screen.scroll(50, 80, 100), 20);
    assert_eq!(screen.scroll(3, 80, 4), 0);
    assert_eq!(screen.scroll(0, 0, 0), 0);
}
