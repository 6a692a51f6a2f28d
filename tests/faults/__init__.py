"""The fault programme (K1, K2): the real program killed, cut and failed at each of its fault points."""
