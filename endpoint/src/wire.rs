//! The messages of the wire. Plans become columns of numbers here, and outcomes are made of such columns, so that the
//! thread that steps makes no object for a row. What else Python answers is handed through as bytes.

use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

/// The types that `proto/engine.proto` generates, except plans and outcomes; the types of their parts are among them.
#[expect(unused_qualifications, reason = "generated from proto/engine.proto")]
#[allow(dead_code, reason = "the parts of plans and outcomes")]
pub mod pb {
    tonic::include_proto!("penstock.engine.v1");
}

/// A plan: its numbers, and admissions as they came.
#[derive(Clone, PartialEq, Message)]
pub struct Plan {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub step: u64,
    #[prost(uint32, repeated, tag = "3")]
    pub retired_slots: Vec<u32>,
    #[prost(bytes = "bytes", repeated, tag = "4")]
    pub admitted: Vec<Bytes>,
    #[prost(uint32, repeated, tag = "5")]
    pub appended_slots: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub appended_counts: Vec<u32>,
    #[prost(uint32, repeated, tag = "7")]
    pub appended_blocks: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    pub copied_from: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    pub copied_to: Vec<u32>,
    #[prost(uint32, repeated, tag = "10")]
    pub span_slots: Vec<u32>,
    #[prost(uint32, repeated, tag = "11")]
    pub span_starts: Vec<u32>,
    #[prost(uint32, repeated, tag = "12")]
    pub span_lens: Vec<u32>,
    #[prost(uint32, repeated, tag = "13")]
    pub open_spans: Vec<u32>,
    #[prost(uint32, repeated, tag = "14")]
    pub open_drafts: Vec<u32>,
    #[prost(uint32, repeated, tag = "15")]
    pub snapshot_spans: Vec<u32>,
    #[prost(uint32, repeated, tag = "16")]
    pub snapshots: Vec<u32>,
}

/// The columns of an outcome.
#[derive(Clone, PartialEq, Message)]
struct Columns {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint64, tag = "2")]
    step: u64,
    #[prost(uint32, repeated, tag = "3")]
    sampled_slots: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    sampled_ids: Vec<u32>,
    #[prost(float, repeated, tag = "5")]
    sampled_logprobs: Vec<f32>,
    #[prost(fixed32, tag = "9")]
    sampled_checksum: u32,
    #[prost(message, optional, tag = "10")]
    timings: Option<pb::StepTimings>,
}

/// The result of one plan: the tokens as columns, and the fields that have no columns, encoded.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub epoch: u64,
    pub step: u64,
    pub slots: Vec<u32>,
    pub ids: Vec<u32>,
    pub logprobs: Vec<f32>,
    /// Only one rank sends tokens; the others send a checksum of theirs.
    pub tells_tokens: bool,
    pub timings: pb::StepTimings,
    pub rest: Bytes,
}

impl Outcome {
    /// The message. A message that follows another is joined with it, so that the rest can be appended.
    pub fn encoded(self) -> Encoded {
        let sampled_checksum = checksum(&self.slots, &self.ids);
        let mut columns = Columns {
            epoch: self.epoch,
            step: self.step,
            sampled_checksum,
            timings: Some(self.timings),
            ..Columns::default()
        };
        if self.tells_tokens {
            columns.sampled_slots = self.slots;
            columns.sampled_ids = self.ids;
            columns.sampled_logprobs = self.logprobs;
        }
        let mut message = Vec::with_capacity(columns.encoded_len() + self.rest.len());
        columns.encode_raw(&mut message);
        message.extend_from_slice(&self.rest);
        Encoded(message.into())
    }
}

/// CRC-32 (IEEE) of the (slot, id) pairs in order, each as two little-endian numbers of 32 bits.
fn checksum(slots: &[u32], ids: &[u32]) -> u32 {
    let pairs = slots.iter().zip(ids);
    let words = pairs.flat_map(|(slot, id)| [*slot, *id]);
    !words.flat_map(u32::to_le_bytes).fold(!0, |sum, byte| sum >> 8 ^ REMAINDERS[(sum as u8 ^ byte) as usize])
}

/// The remainder of every byte, divided by the polynomial.
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut bit) = (byte as u32, 0);
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ 0xEDB8_8320 } else { rest >> 1 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// A message that is handed through.
#[derive(Clone, Debug, Default)]
pub struct Encoded(pub Bytes);

impl Message for Encoded {
    fn decode(mut buffer: impl Buf) -> Result<Self, DecodeError> {
        Ok(Encoded(buffer.copy_to_bytes(buffer.remaining())))
    }

    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    /// Never called: `decode` is the only way in.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        prost::encoding::skip_field(wire_type, tag, buffer, context)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
