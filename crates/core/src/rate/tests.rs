//! The bucket: a burst, then the rate, and never more than the burst after a pause.

use super::*;

fn taken(bucket: &mut Bucket, now: Instant, tries: usize) -> usize {
    (0..tries).filter(|_| bucket.take(now)).count()
}

#[test]
fn a_burst_and_then_the_rate() {
    let mut bucket = Bucket::new(Duration::from_millis(10), 5);
    let start = Instant::from_ms(1000);
    assert_eq!(taken(&mut bucket, start, 100), 5);
    assert_eq!(taken(&mut bucket, Instant::from_ms(1009), 100), 0);
    assert_eq!(taken(&mut bucket, Instant::from_ms(1010), 100), 1);
    assert_eq!(taken(&mut bucket, Instant::from_ms(1045), 100), 3);
    assert_eq!(taken(&mut bucket, Instant::from_ms(1049), 100), 0);
    assert_eq!(taken(&mut bucket, Instant::from_ms(1050), 100), 1);
    assert_eq!(taken(&mut bucket, Instant::from_ms(90_000), 100), 5, "a pause fills it, and no more");
}

#[test]
fn any_second_has_the_rate_and_a_burst_at_most() {
    let mut bucket = Bucket::new(Duration::from_nanos(333_333), 7);
    let granted: Vec<u64> =
        (0..20_000u64).map(|i| i * 100_000).filter(|&ns| bucket.take(Instant::from_ns(ns))).collect();
    for (i, start) in granted.iter().enumerate() {
        let within = granted[i..].iter().take_while(|&&ns| ns < start + 1_000_000_000).count();
        assert!(within <= 3000 + 7 + 1, "{within}");
    }
    assert!(granted.len() >= 6000, "{}", granted.len());
}

#[test]
fn a_bucket_has_one_token_at_least() {
    let mut bucket = Bucket::new(Duration::from_secs(1), 0);
    assert_eq!(taken(&mut bucket, Instant::from_ms(1), 3), 1);
}
