"""BLEU of lower-cased text in tokens: sacrebleu's, or the same by hand where only torch is installed."""

import math
from collections import Counter
from collections.abc import Sequence


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        return by_hand(texts, references)
    # force: without its warning that the text is in tokens.
    score: float = BLEU(lowercase=True, tokenize="none", force=True).corpus_score(texts, [references]).score
    return score


def by_hand(texts: Sequence[str], references: Sequence[str]) -> float:
    """Held to sacrebleu by a test. An order without a match counts as half a match, the next as a quarter."""
    right, every, lengths = [0] * 4, [0] * 4, [0, 0]
    for pair in zip(texts, references, strict=True):
        words, wanted = (t.lower().split() for t in pair)
        lengths = [lengths[0] + len(words), lengths[1] + len(wanted)]
        for n in range(4):
            found, given = (
                Counter(tuple(w[i : i + n + 1]) for i in range(len(w) - n)) for w in (words, wanted)
            )
            right[n] += (found & given).total()
            every[n] += found.total()
    if not right[0]:
        return 0.0
    total, halved = 0.0, 1.0
    for hits, of in zip(right, every, strict=True):
        if not of:
            return 0.0
        halved *= 1 if hits else 2
        total += math.log(hits / of if hits else 1 / (halved * of))
    return 100 * math.exp(total / 4 + min(0.0, 1 - lengths[1] / lengths[0]))
