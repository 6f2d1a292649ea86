// One function for each command, in a file of its own: adds the command to the app. To add one:
// write deploy/cli/<name>.cc with add_<name>(), declare it here, call it in add_all_commands()
// (app.cc), and list the file in CMakeLists.txt.
#pragma once

#include "deploy/cli/context.h"

namespace wsync::cli {

class BenchRun;  // deploy/cli/bench_run.h

void add_bench(CLI::App& app, Context& context);  // with WSYNC_BUILD_BENCH
// Below `bench`; their callbacks add to the run, which `bench` then runs.
void add_bench_baseline(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_compare(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_gpu(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_list(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_copier(CLI::App& bench, Context& context);
void add_bench_peers(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_overhead(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_pipeline(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_control(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_transport(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_codecs(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_recovery(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_report(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_scale(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_schedule(CLI::App& bench, Context& context, BenchRun& run);
void add_bench_sync(CLI::App& bench, Context& context, BenchRun& run);
void add_bundle(CLI::App& app, Context& context);
void add_cancel(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);
void add_demo(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_inspect(CLI::App& app, Context& context);
void add_engine(CLI::App& app, Context& context);
void add_make_checkpoint(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_push(CLI::App& app, Context& context);
void add_rollback(CLI::App& app, Context& context);
void add_schedule(CLI::App& app, Context& context);
void add_sidecar(CLI::App& app, Context& context);
void add_status(CLI::App& app, Context& context);
void add_top(CLI::App& app, Context& context);
void add_trace(CLI::App& app, Context& context);
void add_trainer(CLI::App& app, Context& context);
void add_verify(CLI::App& app, Context& context);

}  // namespace wsync::cli
