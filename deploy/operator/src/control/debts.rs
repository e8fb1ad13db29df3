//! Objects to be written for pods. Each object has its own retry time, so that one that fails does not delay the
//! others. This module does no I/O and reads no clock.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::jobs::{Key, Word};

/// Limit of remembered objects. If it is exceeded, objects are forgotten and written again, which changes nothing in
/// the cluster.
const REMEMBERED: usize = 10_000;
/// The first retry after a failure of the API server.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// The first retry after a rejection, whose cause usually persists.
pub(super) const LATER: Duration = Duration::from_secs(10);
/// The longest pause between retries. The pause doubles with each retry until it reaches this limit.
const LONGEST: Duration = Duration::from_secs(300);

/// Stands in place of a pod's uid, so that the object stays due even if no pod needs it.
pub(super) const NOBODY: &str = "";

/// An object to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A job's Secret.
    Secret(Key),
    /// An Event for an owner.
    Event(Word),
    /// The remediator's CA, in this namespace.
    Authority(String),
}

impl Due {
    /// Returns the minimum number of pods that must need the object at the same time. The note about a missing first
    /// pod needs two, because it would be wrong for a job with one pod.
    fn least(&self) -> usize {
        match self {
            Due::Event(word) if word.code == "no-first-pod" => 2,
            _ => 1,
        }
    }

    /// Returns the key that records that this pod needs no second write. An Event is written once, so its key is the
    /// same for all pods. A Secret may have been deleted, so its key includes the pod, and each new pod of the job
    /// requests the Secret again.
    fn memory(&self, pod: &str) -> String {
        match self {
            Due::Secret(_) => format!("{} {pod}", self.mark()),
            _ => self.mark(),
        }
    }

    /// Returns a key that is equal for the same object of the same owner.
    pub(super) fn mark(&self) -> String {
        match self {
            Due::Secret(key) => format!("secret {} {} {}", key.namespace, key.name, key.owner),
            Due::Event(word) => format!("event {} {}", word.namespace, word.name()),
            Due::Authority(namespace) => format!("authority {namespace}"),
        }
    }
}

#[derive(Debug)]
struct Debt {
    due: Due,
    /// Uids of the pods that need it.
    pods: HashSet<String>,
    /// When the next write is due, or `None` while a write is in progress.
    at: Option<Instant>,
    pause: Option<Duration>,
}

/// The objects that are due; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Debts {
    owed: HashMap<String, Debt>,
    paid: HashSet<String>,
}

impl Debts {
    /// Records that a pod needs this object.
    pub(super) fn owe(&mut self, due: Due, pod: &str, now: Instant) {
        if self.paid.contains(&due.memory(pod)) {
            return;
        }
        // Delay the write of a Secret that this process has written before, because the Secret most likely still exists
        // and the pods of a job arrive in bursts.
        let pause = if self.is_made(&due) { SOON } else { Duration::ZERO };
        let debt = self.owed.entry(due.mark()).or_insert_with(|| Debt {
            due,
            pods: HashSet::new(),
            at: Some(now + pause),
            pause: None,
        });
        if !debt.pods.contains(pod) {
            debt.pods.insert(pod.to_owned());
        }
    }

    /// Records that a pod has ended. Objects that no other pod needs are dropped.
    pub(super) fn over(&mut self, pod: &str) {
        self.owed
            .retain(|_, debt| !debt.pods.remove(pod) || !debt.pods.is_empty());
    }

    /// Drops the needs of all pods other than these.
    pub(super) fn only(&mut self, pods: &HashSet<String>) {
        self.owed.retain(|_, debt| {
            debt.pods.retain(|pod| pod == NOBODY || pods.contains(pod));
            !debt.pods.is_empty()
        });
    }

    /// Makes these pods request their objects again. They are not scheduled yet, and the Secret may be deleted by the
    /// time they are.
    pub(super) fn ask_again(&mut self, pods: &HashSet<String>) {
        let is_of = |memory: &String| memory.rsplit(' ').next().is_some_and(|pod| pods.contains(pod));
        self.paid.retain(|memory| !is_of(memory));
    }

    /// Returns the object that has been due longest, if any. The object is not due again until the result of its write
    /// is known.
    pub(super) fn next(&mut self, now: Instant) -> Option<Due> {
        let due = self
            .owed
            .values_mut()
            .filter(|debt| debt.at.is_some_and(|at| at <= now) && debt.pods.len() >= debt.due.least());
        let debt = due.min_by_key(|debt| debt.at)?;
        debt.at = None;
        Some(debt.due.clone())
    }

    /// Records that the object was written. `is_for_good` means that no further check is needed.
    pub(super) fn paid(&mut self, due: &Due, is_for_good: bool) {
        let debt = self.owed.remove(&due.mark());
        if is_for_good {
            if self.paid.len() >= REMEMBERED {
                self.paid.clear();
            }
            let pods = debt.into_iter().flat_map(|debt| debt.pods);
            self.paid.extend(pods.map(|pod| due.memory(&pod)));
            self.paid.insert(due.mark());
        }
    }

    /// Returns true if this process has written the object for the same owner.
    pub(super) fn is_made(&self, due: &Due) -> bool {
        self.paid.contains(&due.mark())
    }

    /// Records that the write failed. It is retried after `first`, then with growing pauses. Returns true if this is
    /// the first failure.
    pub(super) fn again(&mut self, due: &Due, first: Duration, now: Instant) -> bool {
        let Some(debt) = self.owed.get_mut(&due.mark()) else {
            return false;
        };
        let is_first = debt.pause.is_none();
        let pause = debt
            .pause
            .map_or(first, |pause| first.max(pause * 2).min(LONGEST));
        (debt.at, debt.pause) = (Some(now + pause), Some(pause));
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str) -> Due {
        Due::Secret(Key {
            namespace: "ml".to_owned(),
            name: name.to_owned(),
            owner: "{}".to_owned(),
        })
    }

    #[test]
    fn one_that_cannot_be_written_waits_alone_and_more_and_more() {
        let (mut debts, began) = (Debts::default(), Instant::now());
        let after = |seconds: u64| began + Duration::from_secs(seconds);
        debts.owe(secret("bad"), "p", began);
        debts.owe(secret("bad"), "q", began);
        assert_eq!(debts.next(began), Some(secret("bad")));
        assert_eq!(debts.next(began), None, "it is under way");
        debts.owe(secret("good"), "r", began);
        assert!(debts.again(&secret("bad"), SOON, began), "the first time");
        assert_eq!(debts.next(began), Some(secret("good")));
        debts.paid(&secret("good"), true);
        debts.owe(secret("good"), "r", began);
        let mut tried = Vec::new();
        for second in 0..1000 {
            if let Some(due) = debts.next(after(second)) {
                assert_eq!(due, secret("bad"), "what is written is not written again");
                tried.push(second);
                assert!(!debts.again(&due, SOON, after(second)));
            }
        }
        assert_eq!(tried, [1, 3, 7, 15, 31, 63, 127, 255, 511, 811]);
    }

    #[test]
    fn a_new_pod_asks_again_for_a_secret_and_not_at_once() {
        let (mut debts, now) = (Debts::default(), Instant::now());
        debts.owe(secret("one"), "p", now);
        assert_eq!(debts.next(now), Some(secret("one")));
        debts.owe(secret("one"), "q", now);
        debts.paid(&secret("one"), true);
        for pod in ["p", "q"] {
            debts.owe(secret("one"), pod, now);
            assert_eq!(debts.next(now + LONGEST), None, "{pod} has asked");
        }
        debts.owe(secret("one"), "r", now);
        assert_eq!(debts.next(now), None, "others of its kind may come");
        assert_eq!(debts.next(now + SOON), Some(secret("one")));
        assert!(debts.is_made(&secret("one")) && !debts.is_made(&secret("two")));
    }

    #[test]
    fn a_pod_that_waits_for_a_machine_asks_again() {
        let (mut debts, now) = (Debts::default(), Instant::now());
        for pod in ["bound", "waits"] {
            debts.owe(secret("one"), pod, now);
        }
        debts.next(now);
        debts.paid(&secret("one"), true);
        debts.ask_again(&HashSet::from(["waits".to_owned()]));
        debts.owe(secret("one"), "bound", now);
        assert_eq!(debts.next(now + LONGEST), None);
        debts.owe(secret("one"), "waits", now);
        assert_eq!(debts.next(now + SOON), Some(secret("one")));
    }

    #[test]
    fn what_no_pod_calls_for_is_owed_no_longer() {
        let (mut debts, now) = (Debts::default(), Instant::now());
        for (name, pod) in [("one", "p"), ("one", "q"), ("two", "p"), ("three", "r")] {
            debts.owe(secret(name), pod, now);
        }
        debts.over("p");
        debts.over("stranger");
        debts.only(&HashSet::from(["q".to_owned()]));
        assert_eq!((debts.next(now), debts.next(now)), (Some(secret("one")), None));
        debts.over("q");
        assert!(!debts.again(&secret("one"), SOON, now), "nobody waits for it");
        debts.owe(secret("one"), "t", now);
        assert_eq!(
            debts.next(now),
            Some(secret("one")),
            "another job's pod is not late"
        );
    }

    #[test]
    fn who_trains_alone_misses_no_first_pod() {
        let (mut debts, now) = (Debts::default(), Instant::now());
        let word = |code: &'static str| {
            Due::Event(Word {
                namespace: "ml".to_owned(),
                code,
                is_missing: false,
                says: String::new(),
                about: serde_json::Value::Null,
                pod: String::new(),
            })
        };
        debts.owe(word("no-first-pod"), "p", now);
        assert_eq!(debts.next(now), None);
        // The write of a Secret has failed, and one of the two pods that need it ends.
        debts.over("p");
        debts.owe(word("no-first-pod"), "q", now);
        assert_eq!(debts.next(now), None);
        debts.owe(word("no-first-pod"), "r", now);
        assert_eq!(debts.next(now), Some(word("no-first-pod")));
        debts.owe(word("windows"), "q", now);
        assert_eq!(
            debts.next(now),
            Some(word("windows")),
            "another word is said of one"
        );
    }
}
