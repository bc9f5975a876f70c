//! Draws that repeat under one key, differ under another, and touch nothing but letters.

use super::*;

#[test]
fn the_same_key_draws_the_same_and_another_key_does_not() {
    let draws = |key: u8| {
        let mut entropy = QueryEntropy::new([key; 16]);
        [(); 100].map(|()| entropy.ids())
    };
    assert_eq!(draws(1), draws(1));
    assert_ne!(draws(1), draws(2));
    let mut ids: Vec<u16> = draws(1).into_iter().flatten().collect();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() > 190, "{} of 200 differ", ids.len());
    assert!(draws(1).iter().all(|[one, other]| one != other));
}

#[test]
fn letters_change_case_and_nothing_else_changes() {
    let mut entropy = QueryEntropy::new([7; 16]);
    // Longer than the letters that one draw decides, with a label whose length is that of many.
    let name = [&[63][..], &[b'a'; 63], &[5], b"x-1_Z", &[0]].concat();
    let mut upper = 0;
    for _ in 0..100 {
        let mut mixed = name.clone();
        entropy.mix_case(&mut mixed);
        assert!(mixed.eq_ignore_ascii_case(&name));
        assert_eq!((mixed[0], &mixed[64..65], &mixed[66..69]), (63, &[5][..], &b"-1_"[..]));
        upper += mixed.iter().filter(|byte| byte.is_ascii_uppercase()).count();
    }
    assert!((2500..4000).contains(&upper), "{upper} of 6500 letters");
}
