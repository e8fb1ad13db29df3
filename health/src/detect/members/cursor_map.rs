//! A map with a cursor, for keys that are looked up in the same order every second, as nodes are. The cursor finds the
//! next key without a search. With thousands of keys, a search costs more than the work on the value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A map that predicts the next key. Its contents and their order depend on the keys alone.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Deserialize<'de> + Ord, V: Deserialize<'de>"))]
pub struct CursorMap<K, V> {
    entries: Vec<Entry<K, V>>,
    places: BTreeMap<K, usize>,
    /// Place of the key that was looked up last.
    last: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry<K, V> {
    key: K,
    /// The value, or `None` if it was removed.
    value: Option<V>,
    /// Place of the key that was looked up after this one.
    next: usize,
}

impl<K, V> Default for CursorMap<K, V> {
    fn default() -> Self {
        CursorMap {
            entries: Vec::new(),
            places: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<K: Clone + Ord, V> CursorMap<K, V> {
    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the value of a key, and leaves the cursor in place.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries[*self.places.get(key)?].value.as_ref()
    }

    /// Returns the value of a key, and moves the cursor to it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let is_at = |place: usize| {
            let entry = self.entries.get(place);
            entry.is_some_and(|entry| entry.key == *key && entry.value.is_some())
        };
        if !is_at(self.last) {
            let next = self.entries.get(self.last)?.next;
            let place = if is_at(next) { next } else { *self.places.get(key)? };
            self.entries[self.last].next = place;
            self.last = place;
        }
        self.entries[self.last].value.as_mut()
    }

    /// Returns the value of a key, or a new value, and moves the cursor to it.
    pub fn get_or_insert_with(&mut self, key: &K, new: impl FnOnce() -> V) -> Option<&mut V> {
        if self.get_mut(key).is_none() {
            self.insert(key.clone(), new());
        }
        self.get_mut(key)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        if let Some(kept) = self.get_mut(&key) {
            *kept = value;
            return;
        }
        self.places.insert(key.clone(), self.entries.len());
        self.entries.push(Entry {
            key,
            value: Some(value),
            next: 0,
        });
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.entries[self.places.remove(key)?].value.take()
    }

    /// Returns keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let value = |place: &usize| self.entries[*place].value.as_ref();
        self.places
            .iter()
            .filter_map(move |(key, place)| Some((key, value(place)?)))
    }

    /// Returns keys and values in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let each = self.entries.iter_mut();
        each.filter_map(|entry| Some((&entry.key, entry.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any sequence of calls has the same results as with a plain map.
    #[test]
    fn it_is_a_map() {
        let mut plain: BTreeMap<u32, u32> = BTreeMap::new();
        let mut rounds: CursorMap<u32, u32> = CursorMap::default();
        let mut chance = 1_u32;
        for turn in 0..20_000_u32 {
            chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // The keys are looked up first in rounds, then in no order.
            let key = if turn % 3_000 < 2_000 {
                turn % 17
            } else {
                chance >> 27
            };
            match chance >> 8 & 15 {
                0 => assert_eq!(rounds.remove(&key), plain.remove(&key)),
                1..=3 => {
                    rounds.insert(key, turn);
                    plain.insert(key, turn);
                }
                4 => {
                    let kept = rounds.get_or_insert_with(&key, || turn).copied();
                    assert_eq!(kept, Some(*plain.entry(key).or_insert(turn)));
                }
                5 => assert_eq!(rounds.get(&key), plain.get(&key)),
                _ => assert_eq!(rounds.get_mut(&key), plain.get_mut(&key)),
            }
            assert_eq!(rounds.len(), plain.len());
        }
        assert!(rounds.iter().eq(plain.iter()));
        rounds.iter_mut().for_each(|(_, value)| *value = 0);
        assert!(rounds.iter().all(|(_, value)| *value == 0));
    }
}
