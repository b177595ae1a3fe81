"""The only place where plans become tensors: the inputs of a step, from the slots and from their rows on the device."""

from itertools import accumulate

import torch
from penstock_kernels import AttentionSpans

from penstock_server.engine.plan import Span
from penstock_server.engine.sampling_params import Feature
from penstock_server.engine.slots import Slots
from penstock_server.engine.step import PromptRows, SampledRow, SamplingInput, Step
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.upload import Upload


class Staging:
    """Makes the tensors of steps over the slots of a shard."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots

    def stage(self, spans: list[Span], num_rows: int | None = None) -> Step:
        """The tensors of a step over these spans, which `select` accepted.

        With `num_rows` all are decodes, for a step of so many rows whose other tensors are made on the device.
        """
        upload = Upload()
        if num_rows is None:
            self._add_spans(upload, spans)
        else:
            self._add_padded(upload, spans, num_rows)
        sampling = [span for span in spans if self._is_sampled(span)]
        self._add_sampling(upload, spans, sampling)
        *sent, sampled_rows, slots, lengths, prompt_lens = upload.send(self.slots.device)
        return Step(
            forward=self._forward_input(spans, *sent) if num_rows is None else None,
            decode=None if num_rows is None else sent[0].view(2, num_rows),
            num_spans=len(spans),
            sampled_rows=sampled_rows,
            sampling=self._sampling_input(sampling, slots, lengths, prompt_lens),
            prompt_rows=self._prompt_rows(spans),
        )

    def unwritten(self, spans: list[Span]) -> torch.Tensor:
        """Cache positions in the slots' blocks from the start of each span on: they are not written yet."""
        size, table = self.slots.limits.block_size, self.slots.rows.block_table
        parts = []
        for span in spans:
            end = self.slots.states[span.slot].num_blocks * size
            positions = torch.arange(span.start, end, device=self.slots.device)
            parts.append(table[span.slot, positions // size].long() * size + positions % size)
        return torch.cat(parts)

    def _add_padded(self, upload: Upload, spans: list[Span], num_rows: int) -> None:
        """Slots and starts; further rows are the spare row."""
        missing = num_rows - len(spans)
        slots = [span.slot for span in spans] + [self.slots.rows.spare] * missing
        upload.add(slots + [span.start for span in spans] + [0] * missing)

    def _add_spans(self, upload: Upload, spans: list[Span]) -> None:
        """Slots, starts and lengths."""
        upload.add(span.slot for span in spans)
        upload.add(span.start for span in spans)
        upload.add(span.length for span in spans)

    def _forward_input(
        self, spans: list[Span], slots: torch.Tensor, starts: torch.Tensor, lens: torch.Tensor
    ) -> ForwardInput:
        spans_seen = AttentionSpans(
            query_lens=tuple(span.length for span in spans),
            context_lens=tuple(span.end for span in spans),
            block_tables=self.slots.rows.block_table.index_select(0, slots),
            block_size=self.slots.limits.block_size,
            unbatched=self.slots.batch_invariant,
        )
        if all(span.length == 1 for span in spans):
            rows, positions, tables = slots, starts, spans_seen.block_tables
        else:
            num_tokens = sum(spans_seen.query_lens)
            of_span = torch.repeat_interleave(
                torch.arange(len(spans), device=self.slots.device), lens, output_size=num_tokens
            )
            first_rows = lens.cumsum(0) - lens
            positions = torch.arange(num_tokens, device=self.slots.device) + (starts - first_rows)[of_span]
            rows, tables = slots[of_span], spans_seen.block_tables[of_span]
        return ForwardInput(
            self.slots.rows.token_ids(rows, positions),
            positions,
            cache_positions(tables, positions, self.slots.limits.block_size),
            spans_seen,
        )

    def _add_sampling(self, upload: Upload, spans: list[Span], sampling: list[Span]) -> None:
        """The rows of the hidden states that predict a token, and their slots, lengths and prompt lengths."""
        ends = list(accumulate(span.length for span in spans))
        states = [self.slots.states[span.slot] for span in sampling]
        upload.add(end - 1 for span, end in zip(spans, ends, strict=True) if self._is_sampled(span))
        upload.add(span.slot for span in sampling)
        upload.add(state.length for state in states)
        upload.add(state.prompt_len for state in states)

    def _sampling_input(
        self, spans: list[Span], slots: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor
    ) -> SamplingInput:
        rows, table = [self._sampled_row(span) for span in spans], self.slots.rows
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
        return span.end == self.slots.states[span.slot].length

    def _sampled_row(self, span: Span) -> SampledRow:
        state = self.slots.states[span.slot]
        features, num_generated = state.features, state.length - state.prompt_len
        if features and num_generated >= state.sampling.min_new_tokens:
            features &= ~Feature.SUPPRESSED
        return SampledRow(span.slot, state.length, num_generated, features, state.sampling, state.exclusions)

    def _prompt_rows(self, spans: list[Span]) -> list[PromptRows]:
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


def cache_positions(tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """block * block_size + offset of each token. tables: [num_tokens, max_blocks]."""
    blocks = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    return blocks * block_size + positions % block_size
