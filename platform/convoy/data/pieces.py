"""Documents as sequences of their own: where each piece of a document lies in a split's row of tokens."""

import numpy as np
import numpy.typing as npt


def pieces(ends: npt.NDArray[np.int64], tokens: int, sequence_length: int) -> npt.NDArray[np.int64]:
    """[pieces, 2] First token and number of tokens of each, in order; as many as `sequence_length` + 1, at least two.

    ends: places of the tokens that end documents, ascending; what follows the last one is a document too. A document's
    pieces overlap by a token, which is the target of one and the input of the next.
    """
    firsts = np.concatenate(([0], ends + 1))
    lengths = np.append(ends + 1, tokens) - firsts
    counts = np.maximum(0, -(-(lengths - 1) // sequence_length))
    document = np.repeat(np.arange(firsts.size), counts)
    within = np.arange(document.size) - np.repeat(np.cumsum(counts) - counts, counts)
    start = within * sequence_length
    return np.stack([firsts[document] + start, np.minimum(lengths[document] - start, sequence_length + 1)], axis=1)
