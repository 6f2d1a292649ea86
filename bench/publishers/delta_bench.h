// `wsync bench delta` measures updates in which a part of the weights changes, beside updates in
// which all change.
//
// The trainer is the C program of `wsync bench whole`, and makes patches while it copies. In each
// round, for each share, two updates are published in alternating order: one after a change of this
// share of the weights, and one after a change of all.
//
// By `tcp`, the share of the model's bytes that have travelled is measured as well.
//
// A share is of elements at random positions, or of the bytes of whole tensors, those of experts.
// Whether engines were switched by a patch is counted by the sidecar. Where it was cheaper to load
// everything, the case has no patch, and a note says so.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/catalogue.h"
#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct DeltaBenchOptions {
  std::string executable;  // wsync
  std::string directory;   // for all created files; the owner removes it
  std::string checkpoint;
  std::uint64_t bytes = 0;  // of the checkpoint
  unsigned engines = 1;
  unsigned rounds = 10;
  std::string transport = "memfd";  // by which the sidecar receives versions
  std::vector<double> elements = {0.01, 0.1, 1, 5, 20, 100};  // percent
  std::vector<double> tensors = {1, 10};                      // percent
};

// kResourceExhausted, with the needed amount, if there is too little memory for a model of `bytes`
// bytes; kInvalidInput for a number that cannot be measured.
[[nodiscard]] Result<> check_delta_bench(const DeltaBenchOptions& options, std::uint64_t bytes);

// Errors, after which no process is left: kCancelled on a signal, kDigestMismatch if the engines do
// not have the published bytes, and the first error of a process.
[[nodiscard]] Result<SuiteResult> run_delta_bench(const DeltaBenchOptions& options,
                                                  const Interrupt& interrupt,
                                                  const OnTurn& on_turn);

}  // namespace wsync::bench
