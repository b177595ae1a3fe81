"""The only place where plans become tensors: the inputs of a step, from the slots and from their rows on the device."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import torch
from penstock_kernels import AdapterRows, AttentionSpans, RecurrentSpans

from penstock_server.engine.adapters import NO_ADAPTER
from penstock_server.engine.draft_states import NOWHERE, DraftStates
from penstock_server.engine.plan import Span
from penstock_server.engine.prompt_graphs import GraphShape
from penstock_server.engine.sampling_params import Feature
from penstock_server.engine.slot_table import Decodes
from penstock_server.engine.slots import Slots
from penstock_server.engine.step import PaddedSpans, PromptRows, SampledRow, SamplingInput, Step, TreeRows
from penstock_server.network.forward_input import ForwardInput, ReadRows
from penstock_server.network.upload import Upload, copy_to_device, to_device


class Staging:
    """Makes the tensors of steps over the slots of a shard."""

    def __init__(self, slots: Slots, ahead: int = 0) -> None:
        """`ahead`: how far behind its position the token is that a model takes there."""
        self.slots = slots
        self.ahead = ahead

    def stage(
        self, spans: Sequence[Span], num_rows: int | None = None, shape: GraphShape | None = None
    ) -> Step:
        """The tensors of a step over these spans, which `select` accepted.

        With `num_rows` it is a step of so many rows, whose other tensors are made on the device: one for each position.
        With `shape` it is one of so many tokens and spans, to the same end.
        """
        upload = Upload()
        uses_adapters = self.slots.use_adapters(spans)
        if shape is not None:
            self._add_padded_spans(upload, spans, shape.num_spans)
        elif num_rows is None:
            self._add_spans(upload, spans, uses_adapters)
        else:
            self._add_padded(upload, spans, num_rows, uses_adapters)
        sampling = [span for span in spans if self._is_sampled(span)]
        self._add_sampling(upload, spans, sampling)
        *sent, sampled_rows, slots, lengths, prompt_lens = upload.send(self.slots.device)
        return Step(
            forward=self._forward_input(spans, *sent) if num_rows is None and shape is None else None,
            decode=None if num_rows is None else sent[0].view(-1, num_rows),
            padded=None if shape is None else self._padded(spans, shape, sent[0]),
            num_spans=len(spans),
            num_tokens=sum(span.length for span in spans),
            sampled_rows=sampled_rows,
            sampling=self._sampling_input(sampling, slots, lengths, prompt_lens),
            prompt_rows=self._prompt_rows(spans),
            kept=None if num_rows is None else self._kept(spans),
        )

    def stage_decodes(self, decodes: Decodes, is_recorded: bool, spans: Sequence[Span] = ()) -> Step:
        """The tensors of a step of decodes. `is_recorded`: but for slots and starts, made on the device.

        `spans`: those of the decodes, where anything is drafted.
        """
        count, width = decodes.num_decodes, 2 * decodes.num_rows
        sent = copy_to_device(torch.from_numpy(decodes.numbers), self.slots.device)
        padded = sent[:width].view(2, decodes.num_rows)
        sampled_rows, slots, lengths, prompt_lens = sent[width : width + 4 * count].view(4, count).unbind()
        return Step(
            forward=None if is_recorded else self._decode_input(decodes, padded),
            decode=padded if is_recorded else None,
            padded=None,
            num_spans=count,
            num_tokens=count,
            sampled_rows=sampled_rows,
            sampling=SamplingInput(
                rows=[],
                slots=slots,
                lengths=lengths,
                prompt_lens=prompt_lens,
                params=self.slots.rows.no_params,
                seeds=self.slots.rows.no_seeds,
                decodes=decodes,
                apart=self._apart(decodes, slots, lengths, prompt_lens) if decodes.apart else None,
            ),
            prompt_rows=[],
            kept=self._kept(spans),
            tree=self._tree_rows(decodes),
        )

    def _tree_rows(self, decodes: Decodes) -> TreeRows | None:
        drafted = decodes.drafted
        if drafted is None or not drafted.has_trees:
            return None
        numbers = torch.full((2, decodes.num_rows), -1, dtype=torch.int64)
        numbers[0] = 0
        numbers[0, : decodes.num_decodes] = torch.from_numpy(decodes.column(2) - 1)
        numbers[1, : decodes.num_decodes] = torch.from_numpy(drafted.seen)
        return TreeRows(*copy_to_device(numbers, self.slots.device))

    @property
    def _draft_states(self) -> DraftStates | None:
        """Where states behind tokens are kept; what takes tokens ahead of positions is a head, and has none."""
        return None if self.ahead else self.slots.draft_states

    def _kept(self, spans: Sequence[Span]) -> torch.Tensor | None:
        """Rows in which states behind the tokens of these spans are kept; None where none are."""
        states = self._draft_states
        if states is None or not any(span.drafts for span in spans):
            return None
        rows = list(chain.from_iterable(states.rows(span) for span in spans))
        return to_device(rows, torch.int64, self.slots.device)

    def _recurrent_spans(self, spans: Sequence[Span]) -> RecurrentSpans | None:
        """Does what `_kept` does, where spans may be long: each position of a span with drafts is one of its own."""
        states = self._draft_states
        if states is None or not any(span.drafts for span in spans):
            return None
        parts = [part for span in spans for part in self._parts(span, states)]
        slots, starts, lens, kept = zip(*parts, strict=True)
        index = to_device([slots, starts, kept], torch.int64, self.slots.device)
        return RecurrentSpans(index[0], index[1] == 0, lens, index[2])

    @staticmethod
    def _parts(span: Span, states: DraftStates) -> Iterator[tuple[int, int, int, int]]:
        """Slot, start, length and row of each part."""
        if not span.drafts:
            yield span.slot, span.start, span.length, NOWHERE
            return
        for position, row in enumerate(states.rows(span), span.start):
            yield span.slot, position, 1, row

    def _apart(self, decodes: Decodes, *columns: torch.Tensor) -> SamplingInput:
        """The rows that are sampled apart. columns: slots, lengths and prompt lengths of all."""
        rows = to_device(decodes.apart, torch.int64, self.slots.device)
        spans = [Span(slot, 0, 1) for slot in decodes.slots[decodes.apart].tolist()]
        slots, lengths, prompt_lens = (column.index_select(0, rows) for column in columns)
        return self._sampling_input(spans, slots, lengths, prompt_lens)

    def sampling_behind(self, spans: list[Span]) -> SamplingInput:
        """The rows that are sampled behind these decodes, and behind each of their drafts, and their columns."""
        upload = Upload()
        self._add_sampling(upload, spans, spans)
        _rows, *columns = upload.send(self.slots.device)
        return self._sampling_input(spans, *columns)

    def unwritten(self, spans: Sequence[Span]) -> torch.Tensor:
        """Cache positions in the slots' blocks from the start of each span on: they are not written yet."""
        size, states = self.slots.limits.block_size, self.slots.states
        ends = (states[span.slot].num_blocks * size for span in spans)
        parts = [self.places(span.slot, span.start, end) for span, end in zip(spans, ends, strict=True)]
        return torch.cat(parts)

    def places(self, slot: int, start: int, end: int) -> torch.Tensor:
        """Cache positions of a slot's positions `start .. end`."""
        size, table = self.slots.limits.block_size, self.slots.rows.block_table
        positions = torch.arange(start, end, device=self.slots.device)
        return table[slot, positions // size].long() * size + positions % size

    def _add_padded(self, upload: Upload, spans: Sequence[Span], num_rows: int, uses_adapters: bool) -> None:
        """Slots and starts, and adapters where there are any; further rows are the spare row."""
        missing = num_rows - sum(span.length for span in spans)
        slots = [span.slot for span in spans for _ in range(span.length)]
        numbers = slots + [self.slots.rows.spare] * missing
        numbers += [*chain.from_iterable(range(span.start, span.end) for span in spans), *[0] * missing]
        if uses_adapters:
            adapters = zip(self._adapters(spans), spans, strict=True)
            numbers += [adapter for adapter, span in adapters for _ in range(span.length)]
            numbers += [NO_ADAPTER] * missing
        upload.add(numbers)

    def _add_padded_spans(self, upload: Upload, spans: Sequence[Span], num_spans: int) -> None:
        """Slots, starts and lengths; further spans are of the spare row, and empty."""
        nothing = [0] * (num_spans - len(spans))
        slots = [span.slot for span in spans] + [self.slots.rows.spare] * len(nothing)
        upload.add(
            [*slots, *(span.start for span in spans), *nothing, *(span.length for span in spans), *nothing]
        )

    def _add_spans(self, upload: Upload, spans: Sequence[Span], uses_adapters: bool) -> None:
        """Slots, starts and lengths, and adapters where there are any."""
        upload.add(span.slot for span in spans)
        upload.add(span.start for span in spans)
        upload.add(span.length for span in spans)
        if uses_adapters:
            upload.add(self._adapters(spans))
            upload.add(self.slots.states[span.slot].adapter.start for span in spans)

    def _padded(self, spans: Sequence[Span], shape: GraphShape, numbers: torch.Tensor) -> PaddedSpans:
        places = self._read_places(spans) if shape.leaves_rows else []
        if 2 * len(places) > shape.num_tokens:
            # It would be recorded for little.
            places = []
        read = self._columns(places) if places else None
        return PaddedSpans(numbers.view(3, -1), shape.num_tokens, read)

    def _read_places(self, spans: Sequence[Span]) -> list[tuple[int, int, int]]:
        """Number, slot and position of each row that somebody reads behind the last layer, one at least; empty if all
        are read. Where spans are computed by themselves, so are all of their rows, in one way."""
        if self.slots.batch_invariant or (not self.ahead and any(map(self.slots.reads_prompt, spans))):
            return []
        ends = {
            span.slot: end for span, end in zip(spans, accumulate(span.length for span in spans), strict=True)
        }
        read = self.read_spans(spans)
        if sum(span.length for span in read) == ends[spans[-1].slot]:
            return []
        return [
            (ends[span.slot] - left, span.slot, span.end - left)
            for span in read
            for left in range(span.length, 0, -1)
        ]

    def read_spans(self, spans: Sequence[Span]) -> list[Span]:
        """The part of each span from which tokens are sampled, where there is one; one position at least."""
        sampled = [span for span in spans if self._is_sampled(span)] or spans[-1:]
        return [Span(span.slot, span.known_end - 1, 1 + len(span.drafts), span.drafts) for span in sampled]

    def _read_rows(self, spans: Sequence[Span], adapters: AdapterRows | None) -> ReadRows | None:
        """Does what `_read_places` does, for steps whose lengths are known."""
        places = self._read_places(spans)
        if not places:
            return None
        rows, slots, positions = self._columns(places).unbind()
        context_lens = tuple(position + 1 for _row, _slot, position in places)
        seen = self._attention_spans((1,) * len(places), context_lens, slots)
        of_rows = None if adapters is None else adapters.numbers.index_select(0, rows)
        return ReadRows(rows, self._one_token_each(seen, slots, positions, of_rows))

    def _columns(self, places: list[tuple[int, int, int]]) -> torch.Tensor:
        """[3, number of places] on the device."""
        return to_device(list(zip(*places, strict=True)), torch.int64, self.slots.device)

    def _adapters(self, spans: Sequence[Span]) -> Iterator[int]:
        """The number of the adapter that acts at the end of each span."""
        for span in spans:
            use = self.slots.states[span.slot].adapter
            yield use.number if use.acts_at(span.end) else NO_ADAPTER

    def _forward_input(
        self,
        spans: Sequence[Span],
        slots: torch.Tensor,
        starts: torch.Tensor,
        lens: torch.Tensor,
        adapters: torch.Tensor | None = None,
        adapter_starts: torch.Tensor | None = None,
    ) -> ForwardInput:
        query_lens, context_lens = tuple(span.length for span in spans), tuple(span.end for span in spans)
        spans_seen = self._attention_spans(query_lens, context_lens, slots)
        if all(length == 1 for length in query_lens):
            return self._one_token_each(spans_seen, slots, starts, adapters)
        num_tokens = sum(query_lens)
        of_span = torch.repeat_interleave(
            torch.arange(len(spans), device=self.slots.device), lens, output_size=num_tokens
        )
        first_rows = lens.cumsum(0) - lens
        positions = torch.arange(num_tokens, device=self.slots.device) + (starts - first_rows)[of_span]
        rows, tables = slots[of_span], spans_seen.block_tables[of_span]
        if adapters is not None and adapter_starts is not None:
            acts = positions >= adapter_starts[of_span]
            adapters = torch.where(acts, adapters[of_span], NO_ADAPTER)
        of_rows = _rows(adapters)
        return ForwardInput(
            self.slots.rows.token_ids(rows, positions + self.ahead),
            positions,
            cache_positions(tables, positions, self.slots.limits.block_size),
            spans_seen,
            slots,
            of_rows,
            recurrent=self._recurrent_spans(spans),
            read=self._read_rows(spans, of_rows),
        )

    def _decode_input(self, decodes: Decodes, padded: torch.Tensor) -> ForwardInput:
        query_lens, context_lens = (1,) * decodes.num_decodes, tuple(decodes.column(2).tolist())
        slots, starts = padded
        return self._one_token_each(self._attention_spans(query_lens, context_lens, slots), slots, starts)

    def _one_token_each(
        self,
        spans: AttentionSpans,
        slots: torch.Tensor,
        starts: torch.Tensor,
        adapters: torch.Tensor | None = None,
    ) -> ForwardInput:
        places = cache_positions(spans.block_tables, starts, self.slots.limits.block_size)
        token_ids = self.slots.rows.token_ids(slots, starts + self.ahead)
        return ForwardInput(token_ids, starts, places, spans, slots, _rows(adapters))

    def _attention_spans(
        self, query_lens: tuple[int, ...], context_lens: tuple[int, ...], slots: torch.Tensor
    ) -> AttentionSpans:
        return AttentionSpans(
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=self.slots.rows.block_table.index_select(0, slots),
            block_size=self.slots.limits.block_size,
            unbatched=self.slots.batch_invariant,
        )

    def _add_sampling(self, upload: Upload, spans: Sequence[Span], sampling: Sequence[Span]) -> None:
        """The rows of the hidden states that predict a token, and their slots, lengths and prompt lengths."""
        ends = list(accumulate(span.length for span in spans))
        sampled_ends = [end for span, end in zip(spans, ends, strict=True) if self._is_sampled(span)]
        numbers = [len(span.drafts) for span in sampling]
        first_rows = [end - 1 - number for end, number in zip(sampled_ends, numbers, strict=True)]
        states = [self.slots.states[span.slot] for span in sampling]
        upload.add(chain.from_iterable(map(_run_from, first_rows, numbers)))
        upload.add(span.slot for span in sampling for _ in range(1 + len(span.drafts)))
        upload.add(chain.from_iterable(map(_run_from, (state.length for state in states), numbers)))
        upload.add(
            state.prompt_len for state, number in zip(states, numbers, strict=True) for _ in range(1 + number)
        )

    def _sampling_input(
        self, spans: Sequence[Span], slots: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor
    ) -> SamplingInput:
        rows = [self._sampled_row(span, number) for span in spans for number in range(1 + len(span.drafts))]
        table = self.slots.rows
        is_plain = not any(row.features for row in rows)
        return SamplingInput(
            rows=rows,
            slots=slots,
            lengths=lengths,
            prompt_lens=prompt_lens,
            params=table.no_params if is_plain else table.params.index_select(0, slots),
            seeds=table.no_seeds if is_plain else table.seeds.index_select(0, slots),
        )

    def _is_sampled(self, span: Span) -> bool:
        """Whether a span has the last token of its sequence, so that a new one is sampled."""
        return span.known_end + self.ahead == self.slots.states[span.slot].length

    def _sampled_row(self, span: Span, number: int) -> SampledRow:
        """The row behind so many of the span's drafts."""
        state = self.slots.states[span.slot]
        position = state.length + number
        features, num_generated = state.features, position - state.prompt_len
        if features and num_generated >= state.sampling.min_new_tokens:
            features &= ~Feature.SUPPRESSED
        return SampledRow(
            span.slot,
            position,
            num_generated,
            features,
            state.sampling,
            state.exclusions,
            draft=span.drafts[number] if number < len(span.drafts) else None,
            num_drafts_before=number,
        )

    def _prompt_rows(self, spans: Sequence[Span]) -> list[PromptRows]:
        found, first_row = [], 0
        for span in spans:
            if self.slots.reads_prompt(span):
                state = self.slots.states[span.slot]
                # The row at position p predicts the token at p + 1; the last prompt token predicts what is sampled.
                count = min(span.end, state.prompt_len - 1) - span.start
                num_top = state.sampling.num_top_logprobs
                found.append(PromptRows(span.slot, span.start + 1, first_row, count, num_top))
            first_row += span.length
        return found


def _rows(numbers: torch.Tensor | None) -> AdapterRows | None:
    return None if numbers is None else AdapterRows(numbers)


def _run_from(first: int, number: int) -> range:
    """`first`, and so many numbers behind it."""
    return range(first, first + number + 1)


def cache_positions(tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """block * block_size + offset of each token. tables: [num_tokens, max_blocks]."""
    blocks = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    return blocks * block_size + positions % block_size
