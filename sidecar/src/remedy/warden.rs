//! Connects verdicts with actions. It runs in the aggregator.
//!
//! There is only one remedy at a time. Its stages are the signal that makes trainers write a checkpoint, the wait for
//! the checkpoint's mark, and the stop or the requeue. A restarted aggregator does not resume a remedy; the audit shows
//! it as unfinished.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};

use paceline_health::Frame;
use paceline_health::event::{Event, StepKind};
use paceline_health::id::{JobId, NodeId};
use paceline_health::remedy::{Ask, Decision, Guard, Incident, Outcome, Remedies, Response};
use paceline_health::verdict::{State, Verdict};

use super::books::Books;
use super::options::RemedyPlan;
use super::order::{Order, What};
use super::requeue;
use crate::warn;

/// How long to wait for another rank's checkpoint mark after the last one.
const SETTLE_MS: u64 = 3_000;
/// How long an order is valid. A node that was disconnected must not act on an outdated order.
const LASTS_MS: u64 = 60_000;
/// How long the ledger may be unavailable. After that, pending actions are not taken.
const BLIND_MS: u64 = 30_000;

/// The remedy in progress.
#[derive(Debug)]
struct Course {
    decision: Decision,
    /// Deadline of the wait for a checkpoint.
    until_ms: u64,
    /// When the last checkpoint mark arrived. `None` if there was none.
    marked_ms: Option<u64>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Checkpoint,
    Requeue(Receiver<String>),
    Over,
}

/// The current order to the nodes.
#[derive(Debug)]
struct Said {
    number: u64,
    what: What,
    /// The only node that the order is addressed to, if it is not for all nodes.
    only: Option<NodeId>,
    mark: String,
    since_ms: u64,
}

/// Connects verdicts with actions (see the module documentation).
#[derive(Debug)]
pub struct Warden {
    plan: RemedyPlan,
    job: JobId,
    run: u64,
    guard: Guard,
    books: Books,
    asks: Vec<Ask>,
    over: Vec<Incident>,
    blind_since_ms: Option<u64>,
    course: Option<Course>,
    said: Option<Said>,
    /// The incarnation and number of the last order sent to each node.
    told: BTreeMap<NodeId, (u64, u64)>,
    number: u64,
}

impl Warden {
    /// Creates the warden of a job with these books. Returns `None` if no remedy is requested. `run` is the number of
    /// its journal.
    pub fn open(plan: &RemedyPlan, books: Books, job: &JobId, run: u64, now_ms: u64) -> Option<Warden> {
        if !plan.rules.asks_for_anything() {
            return None;
        }
        let mut plan = plan.clone();
        let saved = books.saved().unwrap_or_else(|error| {
            warn::answer(format_args!(
                "remedies: disabled: earlier remedies are not known: {error}"
            ));
            plan.rules.act = false;
            Default::default()
        });
        let mut warden = Warden {
            guard: Guard::open(plan.rules.clone(), saved, now_ms),
            plan,
            job: job.clone(),
            run,
            books,
            asks: Vec::new(),
            over: Vec::new(),
            blind_since_ms: None,
            course: None,
            said: None,
            told: BTreeMap::new(),
            // Start from the clock, so that a later aggregator uses larger numbers.
            number: now_ms,
        };
        warden.settle(now_ms);
        Some(warden)
    }

    /// Returns the decisions and their results.
    pub fn told(&self) -> &Remedies {
        self.books.told()
    }

    /// Handles a verdict that was raised, changed or cleared.
    pub fn verdict(&mut self, verdict: &Verdict) {
        match verdict.state {
            State::Raised => {
                let wanted = self.plan.rules.wanted(verdict.finding);
                let ask = Ask::of(verdict, self.run, &self.job, &self.plan.account, wanted);
                self.asks.extend(ask);
            }
            State::Cleared => self.over.push(Incident {
                run: self.run,
                id: verdict.id,
            }),
        }
    }

    /// Handles a frame. It may be the mark of the checkpoint that the remedy waits for.
    pub fn frame(&mut self, frame: &Frame, now_ms: u64) {
        let is_mark = match &frame.event {
            Event::Mark(mark) => &*mark.kind == "checkpoint",
            Event::Step(step) => step.kind == StepKind::Checkpoint,
            _ => false,
        };
        if let (true, Some(course)) = (is_mark, &mut self.course) {
            course.marked_ms = Some(now_ms);
        }
    }

    /// Advances time. Call this about once a second.
    pub fn tick(&mut self, now_ms: u64) {
        let is_due = self.guard.wake_at().is_some_and(|at| at <= now_ms);
        if is_due || !self.asks.is_empty() || !self.over.is_empty() {
            self.decide(now_ms);
        }
        self.go_on(now_ms);
        if self
            .said
            .as_ref()
            .is_some_and(|said| now_ms.saturating_sub(said.since_ms) >= LASTS_MS)
        {
            self.said = None;
        }
    }

    fn decide(&mut self, now_ms: u64) {
        let mut site = match self.books.site() {
            Ok(site) => site,
            Err(error) => {
                let since_ms = *self.blind_since_ms.get_or_insert(now_ms);
                if now_ms.saturating_sub(since_ms) >= BLIND_MS {
                    self.asks.clear();
                    self.guard.advance_blind(now_ms, &error.to_string());
                    self.settle(now_ms);
                }
                return;
            }
        };
        self.blind_since_ms = None;
        for ask in std::mem::take(&mut self.asks) {
            self.guard.ask(now_ms, ask, &mut site.ledger);
        }
        for incident in std::mem::take(&mut self.over) {
            self.guard.over(now_ms, incident);
        }
        self.guard.advance(now_ms, &mut site.ledger);
        let kept = site.close();
        let decisions = self.settle(now_ms);
        match kept {
            Ok(()) => decisions
                .into_iter()
                .for_each(|decision| self.begin(decision, now_ms)),
            Err(error) => {
                for decision in decisions {
                    let what = format!("not done: the site's ledger cannot be written: {error}");
                    self.books.course(now_ms, &decision.mark, &what);
                }
            }
        }
    }

    /// Records decisions. Returns those to carry out, if everything was saved.
    fn settle(&mut self, now_ms: u64) -> Vec<Decision> {
        let kept = self.books.save(&self.guard.save());
        let mut acts = Vec::new();
        while let Some(decision) = self.guard.poll() {
            self.books.decision(&decision);
            if decision.outcome == Outcome::Act {
                match &kept {
                    Ok(()) => acts.push(decision),
                    Err(error) => {
                        let what = format!("not done: it cannot be recorded: {error}");
                        self.books.course(now_ms, &decision.mark, &what);
                    }
                }
            }
        }
        acts
    }

    fn begin(&mut self, decision: Decision, now_ms: u64) {
        warn::answer(format_args!(
            "{}: {} for {} on {}",
            decision.mark, decision.ask.response, decision.ask.finding, decision.ask.subject
        ));
        let mut until_ms = now_ms;
        if decision.ask.checkpoint {
            let name = self.plan.signal.clone();
            self.books
                .course(now_ms, &decision.mark, &format!("SIG{name} to the trainers"));
            self.say(What::Signal { name }, None, &decision.mark, now_ms);
            until_ms = now_ms.saturating_add(self.plan.wait_ms);
        }
        self.course = Some(Course {
            decision,
            until_ms,
            marked_ms: None,
            stage: Stage::Checkpoint,
        });
    }

    fn say(&mut self, what: What, only: Option<NodeId>, mark: &str, now_ms: u64) {
        self.number = self.number.max(now_ms) + 1;
        self.said = Some(Said {
            number: self.number,
            what,
            only,
            mark: mark.to_owned(),
            since_ms: now_ms,
        });
    }

    /// Moves the remedy in progress to its next stage if that is due.
    fn go_on(&mut self, now_ms: u64) {
        let Some(mut course) = self.course.take() else {
            return;
        };
        let mark = course.decision.mark.clone();
        course.stage = match course.stage {
            Stage::Checkpoint => {
                let is_settled = course
                    .marked_ms
                    .is_some_and(|at| now_ms.saturating_sub(at) >= SETTLE_MS);
                if !is_settled && now_ms < course.until_ms {
                    Stage::Checkpoint
                } else {
                    let what = match (course.decision.ask.checkpoint, course.marked_ms) {
                        (false, _) => "no checkpoint: the state may already be corrupt",
                        (true, Some(_)) => "a checkpoint was written",
                        (true, None) => "no checkpoint was written in time",
                    };
                    self.books.course(now_ms, &mark, what);
                    self.finish(&course.decision, now_ms)
                }
            }
            Stage::Requeue(answer) => match answer.try_recv() {
                Ok(what) => {
                    self.books.course(now_ms, &mark, &what);
                    Stage::Over
                }
                Err(TryRecvError::Empty) => Stage::Requeue(answer),
                Err(TryRecvError::Disconnected) => Stage::Over,
            },
            Stage::Over => Stage::Over,
        };
        if !matches!(course.stage, Stage::Over) {
            self.course = Some(course);
        }
    }

    /// Starts the stage after the checkpoint, and returns it.
    fn finish(&mut self, decision: &Decision, now_ms: u64) -> Stage {
        match decision.ask.response {
            Response::Log | Response::Signal => Stage::Over,
            Response::LeaveNode => {
                self.leave(decision, now_ms);
                Stage::Over
            }
            Response::CheckpointAndStop => {
                self.books
                    .course(now_ms, &decision.mark, "the command is stopped");
                let grace_ms = self.plan.grace_ms;
                self.say(What::Stop { grace_ms }, None, &decision.mark, now_ms);
                Stage::Over
            }
            Response::Requeue => {
                let command = self.requeue(decision);
                let words = command.join(" ");
                self.books
                    .course(now_ms, &decision.mark, &format!("runs {words}"));
                match requeue::run(command, decision) {
                    Ok(answer) => Stage::Requeue(answer),
                    Err(error) => {
                        self.books.course(
                            now_ms,
                            &decision.mark,
                            &format!("{words}: {error}: the job continues"),
                        );
                        Stage::Over
                    }
                }
            }
        }
    }

    /// Stops the command on the bad node only. An elastic group then re-forms from the remaining nodes.
    fn leave(&mut self, decision: &Decision, now_ms: u64) {
        let what = match decision.ask.node() {
            None => "nothing is stopped: the finding does not belong to one node".to_owned(),
            Some(node) if self.plan.home.as_ref() == Some(node) => {
                format!(
                    "nothing is stopped: the rendezvous of the group is on {node}, and the group would end \
                    with it"
                )
            }
            Some(node) => {
                let grace_ms = self.plan.grace_ms;
                self.say(
                    What::Stop { grace_ms },
                    Some(node.clone()),
                    &decision.mark,
                    now_ms,
                );
                format!("the command of {node} is stopped, the others continue")
            }
        };
        self.books.course(now_ms, &decision.mark, &what);
    }

    /// Returns the requeue command, with node and job filled in.
    fn requeue(&self, decision: &Decision) -> Vec<String> {
        let node = decision.ask.node().map_or("", NodeId::as_str);
        let fill = |word: &String| word.replace("{node}", node).replace("{job}", self.job.as_str());
        self.plan.requeue.iter().map(fill).collect()
    }

    /// Returns the order for a node, unless it was already sent on this link.
    pub fn order(&mut self, node: &NodeId, agent: u64, now_ms: u64) -> Option<Order> {
        let said = self
            .said
            .as_ref()
            .filter(|said| said.only.as_ref().is_none_or(|only| only == node))?;
        if self.told.get(node) == Some(&(agent, said.number)) {
            return None;
        }
        self.told.insert(node.clone(), (agent, said.number));
        Some(Order {
            job: self.job.clone(),
            agent,
            number: said.number,
            what: said.what.clone(),
            mark: said.mark.clone(),
            lasts_ms: LASTS_MS.saturating_sub(now_ms.saturating_sub(said.since_ms)),
        })
    }

    /// Handles a link that was re-established. Orders sent on the old link may be lost, so they are sent again.
    pub fn forget(&mut self, node: &NodeId) {
        self.told.remove(node);
    }
}
