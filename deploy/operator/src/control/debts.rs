//! What is still to be written for pods, each object with a time of its own: one that cannot be written holds up no other. Pure.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::jobs::{Key, Word};

/// What was written is remembered for so many objects; then it is tried again, which changes nothing.
const REMEMBERED: usize = 10_000;
/// The first time again where the API server has failed.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// The same where it has said no: what is in the way is most often there to stay.
pub(super) const LATER: Duration = Duration::from_secs(10);
/// Each pause is twice the one before, to this.
const LONGEST: Duration = Duration::from_secs(300);

/// In a pod's place: it stays owed.
pub(super) const NOBODY: &str = "";

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A job's Secret.
    Secret(Key),
    /// A word to an owner.
    Event(Word),
    /// The remediator's authority, in this namespace.
    Authority(String),
}

impl Due {
    /// How many pods there must be at once: a pod that trains alone misses no first one.
    fn least(&self) -> usize {
        match self {
            Due::Event(word) if word.code == "no-first-pod" => 2,
            _ => 1,
        }
    }

    /// By what it is remembered that this pod need not call for it again. An Event is said once. A Secret may have been deleted: each new pod
    /// of its job asks for it.
    fn memory(&self, pod: &str) -> String {
        match self {
            Due::Secret(_) => format!("{} {pod}", self.mark()),
            _ => self.mark(),
        }
    }

    /// The same for the same object of the same owner.
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
    /// Uids of the pods that call for it.
    pods: HashSet<String>,
    /// `None`: it is being written.
    at: Option<Instant>,
    pause: Option<Duration>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Debts {
    owed: HashMap<String, Debt>,
    paid: HashSet<String>,
}

impl Debts {
    /// A pod calls for it.
    pub(super) fn owe(&mut self, due: Due, pod: &str, now: Instant) {
        if self.paid.contains(&due.memory(pod)) {
            return;
        }
        // Most often it is still there, and a job's pods come many at a time.
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

    /// A pod is over. What no other calls for is owed no longer.
    pub(super) fn over(&mut self, pod: &str) {
        self.owed
            .retain(|_, debt| !debt.pods.remove(pod) || !debt.pods.is_empty());
    }

    /// Only these pods are there.
    pub(super) fn only(&mut self, pods: &HashSet<String>) {
        self.owed.retain(|_, debt| {
            debt.pods.retain(|pod| pod == NOBODY || pods.contains(pod));
            !debt.pods.is_empty()
        });
    }

    /// These pods have no machine yet, and may find the Secret gone when they have one: they ask again.
    pub(super) fn ask_again(&mut self, pods: &HashSet<String>) {
        let is_of = |memory: &String| memory.rsplit(' ').next().is_some_and(|pod| pods.contains(pod));
        self.paid.retain(|memory| !is_of(memory));
    }

    /// What is due longest, if anything is; until its end is told it is not due again.
    pub(super) fn next(&mut self, now: Instant) -> Option<Due> {
        let due = self
            .owed
            .values_mut()
            .filter(|debt| debt.at.is_some_and(|at| at <= now) && debt.pods.len() >= debt.due.least());
        let debt = due.min_by_key(|debt| debt.at)?;
        debt.at = None;
        Some(debt.due.clone())
    }

    /// It is there. `is_for_good`: it need not be looked after again.
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

    /// Whether it was written by us, and for the same owner.
    pub(super) fn is_made(&self, due: &Due) -> bool {
        self.paid.contains(&due.mark())
    }

    /// It could not be written, and is tried again after `first`, then more and more rarely. Whether this is the first time.
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
        // One that failed, and the one that came for it.
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
