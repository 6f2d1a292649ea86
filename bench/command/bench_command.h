// The commands of `wsync-bench`: one function per suite, each in its own file.
#pragma once

#include "shared/command/context.h"
#include "shared/command/program.h"

namespace wsync::cli {

class BenchRun;  // bench_run.h

[[nodiscard]] ProgramSpec bench_program();
void add_bench(CLI::App& app, Context& context);
// Adds the commands below `bench`. Their callbacks add suites to the run, and `bench` executes the
// run.
void add_bench_baseline(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_compare(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_gpu(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_list(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_copier(CLI::App& bench, Context& context);
void add_bench_publisher(CLI::App& bench, Context& context);
void add_bench_peers(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_overhead(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_pipeline(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_control(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_transport(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_codecs(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_delta(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_report(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_scale(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_schedule(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_sync(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_whole(CLI::App& bench, Context& context, BenchRun& run);

}  // namespace wsync::cli
