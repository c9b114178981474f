// Package benchcmd is `kvxfer bench`: it measures transfers of block lists between two daemons of this host, or inside one, and beside
// them what the machine itself can do with the same lists.
//
// Terms. A case is a list: how many blocks, of how many bytes. Its blocks are every second one of a cache, in an order of
// their own on each side. A round is a volley of transfers of new contents, then the limit, then the contiguous stream, one
// after the other, each short and after a go that does not count: what else the machine does in the meantime meets all
// three, so that their ratio means something where the speeds alone would not, and all three are warm. The limit is the same list moved by the program of limit.c, in
// the way that was fastest of all that it has when it tried them. The local side starts a transfer, the remote one leases.
//
// Decisions.
//   - Each transfer has a lease of its own, as each request of an engine has; the lease, like the ticket in a request, is
//     there before the clock runs, and cpu_s_per_gb counts it.
//   - All cases of transfers are blocks of a cache, the one of 8 bytes too: a layout of one layer and one plane has a block in
//     one piece, and an uint8 token of 8 elements is 8 bytes. Prepared ones move the same list between raw regions, and are run one
//     behind the other by the client alone: a request of this process between two runs would take longer than a run.
//   - `bench host` has one daemon and both clients. Its limits are one thread and two in every round: an engine's own loop has one,
//     and the daemon with its clients can use more.
//   - The daemons may use the provider that is measured and no other, and every transfer's result is held to it.
//   - The limits are C, compiled where they run: the limit must not have the costs of Go that it is there to show.
//   - `bench copy` starts no daemon. shm's own copy loop is linked into providers alone; Go's copy stands for what Go
//     reaches without one.
//   - Others on the machine cannot be kept away, so how much of it they used is a field, and much of it is warned of. It
//     bends ratios too: the limit has fewer threads than two daemons, and so a smaller share of a busy processor.
//   - `bench verbs` measures the provider by itself too: what perftest measures has no daemon, and a ratio of unlike things says
//     nothing. Its providers come from internal/node, which alone knows implementations.
//   - perftest is run as people run it, over loop-back and with its own defaults, but with the number of queue pairs that suits it
//     better. It is the rival for one contiguous range; nothing is the limit of lists over RDMA.
//   - `bench many` has its clients and peers in this process: hundreds of processes would measure the scheduler of a small machine. Its
//     peers speak by the code that daemons have (internal/node's Speaker). Of transfers in flight all are bound before the clock runs:
//     else the rate at which leases are granted would be what is measured.
//   - The daemons and clients are this binary, as child processes that the kernel kills with this one.
//
// Invariants, each with the test that holds it:
//   - both sides' ids are permutations of the same spread blocks, differ, and are the same in every process: TestIDs
//   - the C program moves the list that the clients move: TestListIsWhatTheClientsMove
//   - contents tell rounds and positions apart, and a wrong byte is seen: TestContents
//   - each way of the limit's program moves every byte, and it says what is wrong with a command: TestLimitProgram
//   - a prepared transfer moves the same list, and what took another provider is refused: TestRanges, TestWays
//   - what --busy starts computes until its input ends: TestBusy
//   - the faster of host's two limits is the limit, and a list of one block has no second: TestHostRecord
//   - medians and percentiles are values that were measured: TestQuantile
//   - what was not measured is null and "-", never a number: TestReport
//   - what this run itself uses is not taken for what others do: TestOthers
//   - both ends of a tool of perftest run and end, its row is read, and what fails is quoted: TestPerftest, TestPerftestRows, TestListens
//   - a record of operations follows from its samples: TestMessageRecord, TestWithin
//   - a record of many follows from its samples, and lists of counts are checked: TestManyRecords, TestManyUsage
//   - wrong usage is refused with exit code 2 and the allowed values: TestUsage
//   - children end with the run, and a child that fails is quoted: TestChild
//   - both kinds of transfer through real daemons, all fields, an interrupted run leaves nothing: test/integration test_bench.py;
//     what comes in large numbers: the same file;
//     operations and lists over RDMA: test/rdma test_bench_verbs.py
package benchcmd
