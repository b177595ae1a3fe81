//! The messages of the wire. What Python answers is handed through as bytes: of a plan, only its numbers are read here.

use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

/// What `proto/engine.proto` generates, but for plans and outcomes, of whose parts it has the types all the same.
#[expect(unused_qualifications, reason = "generated from proto/engine.proto")]
#[allow(dead_code, reason = "the parts of plans and outcomes")]
pub mod pb {
    tonic::include_proto!("penstock.engine.v1");
}

/// The fields of a plan that say whose it is; prost skips the others.
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint64, tag = "2")]
    step: u64,
}

/// A plan as it came.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub epoch: u64,
    pub step: u64,
    pub encoded: Bytes,
}

impl Message for Plan {
    fn decode(mut buffer: impl Buf) -> Result<Self, DecodeError> {
        let encoded = buffer.copy_to_bytes(buffer.remaining());
        let Head { epoch, step } = Head::decode(encoded.clone())?;
        Ok(Plan { epoch, step, encoded })
    }

    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.encoded);
    }

    fn encoded_len(&self) -> usize {
        self.encoded.len()
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
        *self = Plan::default();
    }
}

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
