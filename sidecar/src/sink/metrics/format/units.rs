//! The units in family names.

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sink) struct Unit {
    /// The suffix of the unit in a family name.
    pub word: &'static str,
    /// The unit as UCUM writes it (<https://ucum.org/ucum>).
    pub ucum: &'static str,
}

/// All units. A unit that is a suffix of another comes after it, so that the longer one is found first.
const UNITS: [Unit; 9] = [
    of("bytes_per_second", "By/s"),
    of("flops_per_second", "{flop}/s"),
    of("seconds", "s"),
    of("bytes", "By"),
    of("ratio", "1"),
    of("celsius", "Cel"),
    of("watts", "W"),
    of("hertz", "Hz"),
    of("joules", "J"),
];

const fn of(word: &'static str, ucum: &'static str) -> Unit {
    Unit { word, ucum }
}

/// Returns the unit of a family, from its name without `_total`.
pub(in crate::sink) fn unit(name: &str) -> Option<Unit> {
    let ends = |unit: &&Unit| {
        name.strip_suffix(unit.word)
            .is_some_and(|rest| rest.ends_with('_'))
    };
    UNITS.iter().find(ends).copied()
}
