"""What forked processes would each import and compile again on their way to the end of a run."""

from __future__ import annotations

import gc

import bm25s  # noqa: F401
import jinja2
import transformers.models.bert.modeling_bert
import transformers.models.bert.tokenization_bert  # noqa: F401
from sentence_transformers.sentence_transformer import evaluation  # noqa: F401
from sentence_transformers.sentence_transformer.model_card import SentenceTransformerModelCardData

import mixfluence.cli.train
import mixfluence.experiment
import mixfluence.training.callback  # noqa: F401
import tests.resume.crashes  # noqa: F401

jinja2.Template(SentenceTransformerModelCardData().template_path.read_text(encoding="utf-8"))
# As in `tests.conftest`: garbage is collected after every training.
gc.freeze()
