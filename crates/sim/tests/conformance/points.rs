//! Something forced at every point of a world: at the first, at the second, until a world ends before its
//! point.

use brodo_core::time::Instant;
use brodo_sim::world::World;

/// The worlds with it at point 0, 1 and so on, each after its end. `make` gives the world of a point; the
/// first one whose point has not come is the end.
pub(crate) fn each(
    make: impl Fn(u64) -> World,
    has_come: impl Fn(&World) -> bool,
) -> impl Iterator<Item = World> {
    let played = move |point| {
        let mut world = make(point);
        let failed = Failed(point);
        world.run(Instant::from_ms(400_000));
        std::mem::forget(failed);
        world
    };
    (0..).map(played).take_while(has_come)
}

/// Prints the point of a world that fails.
struct Failed(u64);

impl Drop for Failed {
    fn drop(&mut self) {
        eprintln!("failed with point {}", self.0);
    }
}
