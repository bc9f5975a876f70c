//! temp
#[test]
fn one() {
    let Some(p) = std::env::var_os("ONE") else { return };
    brodo_fuzz::stack::run(&std::fs::read(p).unwrap());
}
