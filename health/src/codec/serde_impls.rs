//! Serde implementations for types that have none: arrays of any length and histograms, restored exactly.

/// Serialization of arrays of any length.
pub mod array {
    use std::fmt;
    use std::marker::PhantomData;

    use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
    use serde::ser::{Serialize, SerializeTuple, Serializer};

    /// Serializes the elements in order.
    pub fn serialize<S: Serializer, T: Serialize, const N: usize>(
        array: &[T; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(N)?;
        for element in array {
            tuple.serialize_element(element)?;
        }
        tuple.end()
    }

    /// Deserializes exactly as many elements as the array has.
    pub fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[T; N], D::Error> {
        deserializer.deserialize_tuple(N, Elements(PhantomData))
    }

    struct Elements<T, const N: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Elements<T, N> {
        type Value = [T; N];

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{N} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<[T; N], A::Error> {
            let mut array = Vec::with_capacity(N);
            while let Some(element) = elements.next_element()? {
                array.push(element);
            }
            let found = array.len();
            array
                .try_into()
                .map_err(|_| A::Error::invalid_length(found, &self))
        }
    }
}

/// Serialization of histograms as their bounds and the count of each value.
pub mod histogram {
    use hdrhistogram::{Counter, Histogram};
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    /// Lowest and highest value, significant digits, and counts by value.
    type Kept<C> = (u64, u64, u8, Vec<(u64, C)>);

    /// Serializes all values with a nonzero count.
    pub fn serialize<S: Serializer, C: Counter + Serialize>(
        histogram: &Histogram<C>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let counts = histogram
            .iter_recorded()
            .map(|at| (at.value_iterated_to(), at.count_at_value()));
        let kept: Kept<C> = (
            histogram.low(),
            histogram.high(),
            histogram.sigfig(),
            counts.collect(),
        );
        kept.serialize(serializer)
    }

    /// Deserializes a histogram with the same count in every bucket.
    pub fn deserialize<'de, D: Deserializer<'de>, C: Counter + Deserialize<'de>>(
        deserializer: D,
    ) -> Result<Histogram<C>, D::Error> {
        let (low, high, digits, counts) = Kept::<C>::deserialize(deserializer)?;
        let mut histogram = Histogram::new_with_bounds(low, high, digits).map_err(D::Error::custom)?;
        for (value, count) in counts {
            histogram
                .record_n(value, count)
                .map_err(|_| D::Error::custom("a value that is out of its histogram's bounds"))?;
        }
        Ok(histogram)
    }
}
