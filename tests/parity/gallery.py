"""Which programs examples/gallery has, and whether each is for parameter servers too."""

PROGRAMS = {
    "bert": False,
    "crf_tagging": False,
    "deepfm": True,
    "din": True,
    "gru4rec": True,
    "mmoe": False,
    "resnet": False,
    "semantic_matching": True,
    "transformer": False,
    "word2vec": True,
}
STEPS = 20  # of which losses are compared
