"""The gRPC methods of a shard. No tensors and no decisions here."""

import threading
import uuid
from collections.abc import Iterator

import grpc

from penstock_server import __version__
from penstock_server.base.errors import InvalidPlan
from penstock_server.pb import engine_pb2 as pb
from penstock_server.pb import engine_pb2_grpc
from penstock_server.rpc.conversion import generation_to_pb, outcome_to_pb, plan_from_pb
from penstock_server.rpc.session import Session
from penstock_server.rpc.step_loop import StepLoop

SERVICE_NAME = "penstock.engine.v1.Engine"

_MIN_BEAT_MS, _MAX_BEAT_MS = 50, 5000


class EngineService(engine_pb2_grpc.EngineServicer):
    """One shard's service."""

    def __init__(self, loop: StepLoop) -> None:
        self.loop = loop
        self.stopping = threading.Event()
        self._instance_id = uuid.uuid4().hex

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.DescribeResponse:
        description = self.loop.engine.description
        facts, limits = description.facts, description.limits
        return pb.DescribeResponse(
            version=__version__,
            instance_id=self._instance_id,
            model_type=facts.model_type,
            dtype=description.dtype,
            device=description.device,
            rank=description.rank,
            world_size=description.world_size,
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            num_slots=limits.num_slots,
            vocab_size=limits.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            max_sequence_len=limits.max_sequence_len,
            max_step_tokens=limits.max_step_tokens,
            max_top_logprobs=description.max_top_logprobs,
            abilities=description.abilities,
            last_epoch=self.loop.last_epoch,
            attention_window=facts.attention_window or 0,
            generation_defaults=generation_to_pb(description.generation),
            kv_cache_dtype=description.kv_cache_dtype,
            attention_backend=description.attention_backend,
        )

    def Run(self, plans: Iterator[pb.Plan], context: grpc.ServicerContext) -> Iterator[pb.Outcome]:
        # At once: a client may wait for the headers before it sends the first plan.
        context.send_initial_metadata(())
        first = next(plans, None)
        if first is None:
            return
        session = self.loop.open(first.epoch)
        # Called however the stream ends: `outcomes` below must return when the router is gone.
        if not context.add_callback(session.close):
            session.close()
        reader = threading.Thread(
            target=self._read, args=(session, first, plans), name="plan-reader", daemon=True
        )
        reader.start()
        rank = self.loop.engine.description.rank
        for outcome in session.outcomes():
            yield outcome_to_pb(outcome, rank)

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Heartbeat]:
        interval_s = min(max(request.interval_ms, _MIN_BEAT_MS), _MAX_BEAT_MS) / 1000
        while context.is_active():
            yield pb.Heartbeat(**self.loop.progress()._asdict())
            if self.stopping.wait(interval_s):
                return

    def _read(self, session: Session, first: pb.Plan, rest: Iterator[pb.Plan]) -> None:
        try:
            self._submit(session, first)
            for plan in rest:
                self._submit(session, plan)
        except InvalidPlan as error:
            session.close(error)
        except grpc.RpcError:
            session.close()
        except Exception as error:
            session.close(InvalidPlan(f"the stream of plans broke: {error}"))
        finally:
            self.loop.finish(session)

    def _submit(self, session: Session, plan: pb.Plan) -> None:
        self.loop.submit(session, plan_from_pb(plan))
