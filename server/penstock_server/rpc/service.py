"""The gRPC methods of a shard for the server of grpcio. No tensors and no decisions here."""

import threading
from collections.abc import Iterator

import grpc

from penstock_server.base.errors import InvalidPlan
from penstock_server.pb import engine_pb2 as pb
from penstock_server.pb import engine_pb2_grpc
from penstock_server.rpc.calls import Calls
from penstock_server.rpc.conversion import Encoding, outcome_to_pb, plan_from_pb
from penstock_server.rpc.session import QueuedSession
from penstock_server.rpc.streams import QueuedStreams

_MIN_BEAT_MS, _MAX_BEAT_MS = 50, 5000


class EngineService(engine_pb2_grpc.EngineServicer):
    """One shard's service."""

    def __init__(
        self, streams: QueuedStreams, description: pb.DescribeResponse, encoding: Encoding, calls: Calls
    ) -> None:
        self._streams = streams
        self.description = description
        self._encoding = encoding
        self._calls = calls
        self.stopping = threading.Event()

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.DescribeResponse:
        answer = pb.DescribeResponse()
        answer.CopyFrom(self.description)
        answer.last_epoch = self._streams.last_epoch
        return answer

    def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: grpc.ServicerContext
    ) -> pb.LoadAdapterResponse:
        return self._calls.load_adapter(request)

    def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: grpc.ServicerContext
    ) -> pb.UnloadAdapterResponse:
        return self._calls.unload_adapter(request)

    def Sleep(self, request: pb.SleepRequest, context: grpc.ServicerContext) -> pb.SleepResponse:
        return self._calls.sleep(request)

    def WakeUp(self, request: pb.WakeUpRequest, context: grpc.ServicerContext) -> pb.WakeUpResponse:
        return self._calls.wake_up(request)

    def CheckWeights(
        self, request: pb.CheckWeightsRequest, context: grpc.ServicerContext
    ) -> pb.CheckWeightsResponse:
        return self._calls.check_weights(request)

    def ReplaceWeights(
        self, request: pb.ReplaceWeightsRequest, context: grpc.ServicerContext
    ) -> pb.ReplaceWeightsResponse:
        return self._calls.replace_weights(request)

    def ReceiveWeights(
        self, request: pb.ReceiveWeightsRequest, context: grpc.ServicerContext
    ) -> pb.ReceiveWeightsResponse:
        return self._calls.receive_weights(request)

    def FetchBlocks(
        self, request: pb.FetchBlocksRequest, context: grpc.ServicerContext
    ) -> pb.FetchBlocksResponse:
        return self._calls.fetch_blocks(request)

    def Run(self, plans: Iterator[pb.Plan], context: grpc.ServicerContext) -> Iterator[pb.Outcome]:
        # At once: a client may wait for the headers before it sends the first plan.
        context.send_initial_metadata(())
        first = next(plans, None)
        if first is None:
            return
        session = self._streams.open(first.epoch)
        # Called however the stream ends: `outcomes` below must return when the router is gone.
        if not context.add_callback(session.close):
            session.close()
        reader = threading.Thread(
            target=self._read, args=(session, first, plans), name="plan-reader", daemon=True
        )
        reader.start()
        for outcome in session.outcomes():
            yield outcome_to_pb(outcome, self._encoding)

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Heartbeat]:
        interval_s = min(max(request.interval_ms, _MIN_BEAT_MS), _MAX_BEAT_MS) / 1000
        while context.is_active():
            yield pb.Heartbeat(**self._streams.progress()._asdict())
            if self.stopping.wait(interval_s):
                return

    def _read(self, session: QueuedSession, first: pb.Plan, rest: Iterator[pb.Plan]) -> None:
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
            self._streams.finish(session)

    def _submit(self, session: QueuedSession, plan: pb.Plan) -> None:
        self._streams.submit(session, plan_from_pb(plan))
