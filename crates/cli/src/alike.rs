//! Suggestions for unknown words: the known one that is most like it.

/// Least likeness of a known word to the unknown one, of 1, by Jaro's measure: as in clap.
const ALIKE_MIN: f64 = 0.7;

/// The known word that is most like `name`, if one is alike at all.
pub(crate) fn most_alike<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = known.map(|word| (strsim::jaro(name, word), word));
    let alike = likeness.filter(|(much, _)| *much > ALIKE_MIN);
    alike.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, word)| word)
}
