//! Encodes and decodes the 64 bytes of each record. `layout.md` defines the offsets.

use crate::collective::{Collective, KIND_COLLECTIVE, KIND_TIMED, Timed};
use crate::layout::{SLOT_BYTES, SLOT_WORDS, Slot};
use crate::record::{
    Attach, Axis, Comm, Detach, Framework, Group, Layout, Mark, Note, PhaseWord, Record, Role, Step,
    StepWord, Work,
};

pub(crate) const KIND_ATTACH: u16 = 2;
pub(crate) const KIND_ROLE: u16 = 6;
const KIND_LAYOUT: u16 = 7;
const KIND_WORK: u16 = 8;
const KIND_GROUP: u16 = 9;
const KIND_COMM: u16 = 10;

/// Returns the kind of the record in a slot.
pub(crate) fn kind_of(slot: &Slot) -> u16 {
    (slot[1] >> 32) as u16
}

/// Returns the words after sequence, checksum and kind.
fn payload(slot: &Slot) -> [u64; 6] {
    let [_, _, rest @ ..] = *slot;
    rest
}

impl Record {
    /// Encodes the record as a slot without its sequence and checksum.
    pub(crate) fn encode(&self) -> Slot {
        let mut bytes = Bytes([0; SLOT_BYTES]);
        match self {
            Record::Step(step) => {
                bytes.put(12, 1u16.to_le_bytes());
                step.encode(&mut bytes);
            }
            Record::Attach(attach) => {
                bytes.put(12, KIND_ATTACH.to_le_bytes());
                attach.encode(&mut bytes);
            }
            Record::Mark(mark) => {
                bytes.put(12, 3u16.to_le_bytes());
                bytes.put(16, mark.step.to_le_bytes());
                bytes.put(24, mark.value.to_le_bytes());
                bytes.put_text(32, 64, &mark.kind);
            }
            Record::Detach(detach) => {
                bytes.put(12, 4u16.to_le_bytes());
                bytes.put(16, detach.step.to_le_bytes());
            }
            Record::Note(note) => {
                bytes.put(12, 5u16.to_le_bytes());
                bytes.put_text(16, 64, &note.text);
            }
            Record::Role(role) => {
                bytes.put(12, KIND_ROLE.to_le_bytes());
                bytes.put_text(16, 64, &role.text);
            }
            Record::Layout(layout) => layout.encode(&mut bytes),
            Record::Work(work) => work.encode(&mut bytes),
            Record::Group(group) => group.encode(&mut bytes),
            Record::Comm(comm) => comm.encode(&mut bytes),
            Record::Collective(did) => bytes.put_words(KIND_COLLECTIVE, did.words()),
            Record::Timed(timed) => bytes.put_words(KIND_TIMED, timed.words()),
            Record::Unknown(kind) => bytes.put(12, kind.to_le_bytes()),
        }
        bytes.words()
    }

    /// Decodes a slot. It never fails: any 64 bytes are a record, at worst one of an unknown kind.
    pub(crate) fn decode(slot: &Slot) -> Record {
        let bytes = Bytes::of(slot);
        match kind_of(slot) {
            1 => Record::Step(Step::decode(&bytes)),
            KIND_ATTACH => Record::Attach(Attach::decode(&bytes)),
            3 => Record::Mark(Mark {
                step: bytes.u64(16),
                value: bytes.u64(24),
                kind: bytes.text(32, 64),
            }),
            4 => Record::Detach(Detach { step: bytes.u64(16) }),
            5 => Record::Note(Note {
                text: bytes.text(16, 64),
            }),
            KIND_ROLE => Record::Role(Role {
                text: bytes.text(16, 64),
            }),
            KIND_LAYOUT => Record::Layout(Layout::decode(&bytes)),
            KIND_WORK => Record::Work(Work::decode(&bytes)),
            KIND_GROUP => Record::Group(Group::decode(&bytes)),
            KIND_COMM => Record::Comm(Comm::decode(&bytes)),
            KIND_COLLECTIVE => Record::Collective(Collective::of(payload(slot))),
            KIND_TIMED => Record::Timed(Timed::of(payload(slot))),
            kind => Record::Unknown(kind),
        }
    }
}

impl Step {
    fn encode(&self, bytes: &mut Bytes) {
        bytes.put(16, self.step.to_le_bytes());
        bytes.put(24, self.duration_ns.to_le_bytes());
        bytes.put(32, self.data_us.to_le_bytes());
        bytes.put(36, self.compute_us.to_le_bytes());
        bytes.put(40, self.wait_us.to_le_bytes());
        bytes.put(44, self.optimizer_us.to_le_bytes());
        bytes.put(48, self.checkpoint_us.to_le_bytes());
        bytes.put(52, self.micro_batches.to_le_bytes());
        bytes.put(54, [self.kind as u8, u8::from(self.phases_known)]);
        bytes.put(56, self.tokens.to_le_bytes());
    }

    fn decode(bytes: &Bytes) -> Step {
        Step {
            step: bytes.u64(16),
            duration_ns: bytes.u64(24),
            data_us: bytes.u32(32),
            compute_us: bytes.u32(36),
            wait_us: bytes.u32(40),
            optimizer_us: bytes.u32(44),
            checkpoint_us: bytes.u32(48),
            micro_batches: bytes.u16(52),
            kind: match bytes.0[54] {
                1 => StepWord::Checkpoint,
                2 => StepWord::Evaluation,
                3 => StepWord::WarmUp,
                _ => StepWord::Train,
            },
            phases_known: bytes.0[55] & 1 != 0,
            tokens: bytes.u64(56),
        }
    }
}

impl Attach {
    fn encode(&self, bytes: &mut Bytes) {
        bytes.put(16, self.rank.to_le_bytes());
        bytes.put(20, self.local_rank.to_le_bytes());
        bytes.put(24, self.world_size.to_le_bytes());
        bytes.put(28, self.restart.to_le_bytes());
        bytes.put(32, self.device.to_le_bytes());
        bytes.put(36, self.gpu_uuid);
        bytes.put(52, self.version);
        bytes.put(
            55,
            [match self.framework {
                Framework::Torch => 1u8,
                Framework::Demo => 2,
                Framework::Other => 3,
                Framework::Nccl => 4,
            }],
        );
        bytes.put(56, self.nccl);
        bytes.put(59, self.cuda);
    }

    fn decode(bytes: &Bytes) -> Attach {
        Attach {
            rank: bytes.u32(16),
            local_rank: bytes.u32(20),
            world_size: bytes.u32(24),
            restart: bytes.u32(28),
            device: i32::from_le_bytes(bytes.array(32)),
            gpu_uuid: bytes.array(36),
            version: bytes.array(52),
            framework: match bytes.0[55] {
                1 => Framework::Torch,
                2 => Framework::Demo,
                4 => Framework::Nccl,
                _ => Framework::Other,
            },
            nccl: bytes.array(56),
            cuda: bytes.array(59),
        }
    }
}

impl Layout {
    fn encode(&self, bytes: &mut Bytes) {
        bytes.put(12, KIND_LAYOUT.to_le_bytes());
        let axes = [self.dp, self.tp, self.pp, self.ep, self.cp];
        for (i, axis) in axes.iter().enumerate() {
            bytes.put(16 + 4 * i, axis.index.to_le_bytes());
            bytes.put(18 + 4 * i, axis.size.to_le_bytes());
        }
        bytes.put(36, self.micro_batches.to_le_bytes());
    }

    fn decode(bytes: &Bytes) -> Layout {
        let axis = |at: usize| Axis {
            index: bytes.u16(at),
            size: bytes.u16(at + 2),
        };
        Layout {
            dp: axis(16),
            tp: axis(20),
            pp: axis(24),
            ep: axis(28),
            cp: axis(32),
            micro_batches: bytes.u32(36),
        }
    }
}

impl Work {
    fn encode(&self, bytes: &mut Bytes) {
        bytes.put(12, KIND_WORK.to_le_bytes());
        bytes.put(16, self.step.to_le_bytes());
        bytes.put(24, self.sum_sq.to_le_bytes());
        bytes.put(32, self.expert_tokens.to_le_bytes());
        bytes.put(40, self.gc_us.to_le_bytes());
    }

    fn decode(bytes: &Bytes) -> Work {
        Work {
            step: bytes.u64(16),
            sum_sq: bytes.u64(24),
            expert_tokens: bytes.u64(32),
            gc_us: bytes.u32(40),
        }
    }
}

impl Group {
    fn encode(&self, bytes: &mut Bytes) {
        bytes.put(12, KIND_GROUP.to_le_bytes());
        bytes.put(16, self.comm.to_le_bytes());
        bytes.put(24, self.size.to_le_bytes());
        bytes.put_text(32, 56, &self.name);
    }

    fn decode(bytes: &Bytes) -> Group {
        Group {
            comm: bytes.u64(16),
            size: bytes.u32(24),
            name: bytes.text(32, 56),
        }
    }
}

impl Comm {
    fn encode(&self, bytes: &mut Bytes) {
        bytes.put(12, KIND_COMM.to_le_bytes());
        bytes.put(16, self.step.to_le_bytes());
        bytes.put(24, self.comm.to_le_bytes());
        bytes.put(32, self.bytes.to_le_bytes());
        bytes.put(40, self.duration_ns.to_le_bytes());
        bytes.put(48, self.collectives.to_le_bytes());
    }

    fn decode(bytes: &Bytes) -> Comm {
        Comm {
            step: bytes.u64(16),
            comm: bytes.u64(24),
            bytes: bytes.u64(32),
            duration_ns: bytes.u64(40),
            collectives: bytes.u32(48),
        }
    }
}

impl PhaseWord {
    /// Decodes the low byte of the progress word.
    pub(crate) fn from_byte(byte: u8) -> PhaseWord {
        match byte {
            1 => PhaseWord::Data,
            2 => PhaseWord::Compute,
            3 => PhaseWord::Wait,
            4 => PhaseWord::Optimizer,
            5 => PhaseWord::Checkpoint,
            6 => PhaseWord::Evaluation,
            _ => PhaseWord::Other,
        }
    }
}

/// The bytes of a slot. Offsets are constants of this file, all in bounds.
struct Bytes([u8; SLOT_BYTES]);

impl Bytes {
    fn of(slot: &Slot) -> Bytes {
        let mut bytes = [0; SLOT_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(slot) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Bytes(bytes)
    }

    fn words(&self) -> Slot {
        let mut slot = [0; SLOT_WORDS];
        for (i, word) in slot.iter_mut().enumerate() {
            *word = self.u64(i * 8);
        }
        slot
    }

    fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&value);
    }

    fn put_words(&mut self, kind: u16, words: [u64; 6]) {
        self.put(12, kind.to_le_bytes());
        for (i, word) in words.iter().enumerate() {
            self.put(16 + 8 * i, word.to_le_bytes());
        }
    }

    /// Stores the text, cut at a character boundary so that the result is UTF-8.
    fn put_text(&mut self, from: usize, to: usize, text: &str) {
        let mut end = text.len().min(to - from);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0[from..from + end].copy_from_slice(&text.as_bytes()[..end]);
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut value = [0; N];
        value.copy_from_slice(&self.0[at..at + N]);
        value
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    fn text(&self, from: usize, to: usize) -> String {
        let bytes = &self.0[from..to];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}
