"""Several commands at once on one store, one storage operation at a time, in an order that a short text repeats.

scheduler    whose turn it is: threads of which one runs, a switch at any stop, a kill at any stop
stops        where threads stop: every operation on files or objects of the simulated store
machine      what is replaced while a simulation runs: pools, process numbers, waiting, sizes of small chunks
rows         what was put into a store, and whether what is read back is that
states       stores as the commands find them: healthy, damaged, indexed, with files of a user
commands     library calls as the command line makes them; learning: those of `ppa`
scenarios    which commands meet on which store
case         an order that is judged: what was there, and what has become of it
oracle       what must hold of what commands return or refuse; aftermath: of what they leave
exploration  which orders are tried, by processes whose death is a finding, too
tally        how many they were and what was found, as a table

    python -m tests.simulation --minutes 1
    python -m tests.simulation --repeat TOKEN --trace
"""
