//! Messages of many sidecars on one link, as forwarded by a relay ([`crate::relay`]). A route is the number that the
//! relay gave to a connection. Answers repeat the route, and only the relay interprets it.

use super::wire::{Blob, MAX_MESSAGE_BYTES};

/// Messages with their routes.
pub type Carried = Vec<(u64, Blob)>;

/// Size at which a bundle is sent, bytes.
pub const BUNDLE_BYTES: usize = 128 << 10;
/// Maximum number of chained relays. Bundles are decoded up to this nesting depth.
pub const MAX_HOPS: u8 = 4;
/// Maximum size of a route and two lengths, bytes.
const AROUND: usize = 20;
/// Maximum size of a message that is forwarded, bytes. It leaves room for the overhead of every relay.
pub const MAX_CARRIED_BYTES: usize = MAX_MESSAGE_BYTES - (AROUND + 16) * MAX_HOPS as usize;

/// A bundle being filled.
#[derive(Debug, Default)]
pub struct Bundle {
    carried: Carried,
    bytes: usize,
}

impl Bundle {
    /// Adds a message. Returns the previous contents if both do not fit into one bundle.
    pub fn add(&mut self, route: u64, message: Vec<u8>) -> Option<Carried> {
        let takes = message.len() + AROUND;
        let is_too_much = self.bytes > 0 && self.bytes + takes > BUNDLE_BYTES;
        let full = is_too_much.then(|| self.take());
        self.bytes += takes;
        self.carried.push((route, Blob(message)));
        full
    }

    /// Takes all messages.
    pub fn take(&mut self) -> Carried {
        self.bytes = 0;
        std::mem::take(&mut self.carried)
    }

    /// Returns true if the bundle has no messages.
    pub fn is_empty(&self) -> bool {
        self.carried.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::wire::{Down, Up, decode_down, decode_up, encode};

    #[test]
    fn bundles_are_full_and_never_too_large() {
        let mut bundle = Bundle::default();
        let mut left = Vec::new();
        for route in 0..2000 {
            left.extend(bundle.add(route, vec![7; 600]));
        }
        left.push(bundle.take());
        assert!(bundle.is_empty() && bundle.take().is_empty());
        let routes: Vec<u64> = left.iter().flatten().map(|(route, _)| *route).collect();
        assert_eq!(routes, (0..2000).collect::<Vec<_>>());
        for carried in left {
            let bytes = encode(&Up::Carried(carried));
            assert!(bytes.len() <= BUNDLE_BYTES);
            assert!(decode_up(&bytes).is_ok());
        }
    }

    #[test]
    fn the_largest_message_passes_all_relays() {
        let mut message = vec![7; MAX_CARRIED_BYTES];
        for _ in 0..MAX_HOPS {
            message = encode(&Up::Carried(vec![(u64::MAX, Blob(message))]));
        }
        assert!(decode_up(&message).is_ok());
        let down = encode(&Down::Carried(Vec::new()));
        assert_eq!(decode_down(&down).unwrap(), Down::Carried(Vec::new()));
    }

    #[test]
    fn a_bundle_that_claims_more_than_it_holds_is_refused() {
        // The first bytes claim a hundred million messages. The others claim one message of four gigabytes.
        for claim in [
            &[0xdd, 5, 0xff, 0xff, 0xff][..],
            &[0x91, 0x92, 1, 0xc6, 0xff, 0xff, 0xff, 0xff][..],
        ] {
            let mut bytes = encode(&Up::Carried(Vec::new()));
            bytes.pop();
            bytes.extend(claim);
            assert!(decode_up(&bytes).is_err());
        }
    }
}
