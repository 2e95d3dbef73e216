"""`perdure context` within a tenth of a second: a process that stays for a while with the service open.

    asking.py     the quick way, standard library only: what was asked, which process may answer it, and its answer
    answering.py  that process: `python -m perdure.warm.answering FOLDER JSON`; its life is a worker's

Importing the service takes most of a second, and a client's hook asks at every prompt. Whoever finds no such process
answers itself and leaves one behind. It serves one set of settings: those are its name.
"""
