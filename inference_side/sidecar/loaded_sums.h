// LoadedSums: the sums that the ranks of a replica have returned for the load that runs. When all
// have answered, they are compared with the version (reload/sum_check.h). Nothing else may be
// committed.
//
// Thread: confined to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/sum_check.h"
#include "inference_side/sidecar/load_cache.h"
#include "inference_side/staging/held_patch.h"
#include "inference_side/staging/store.h"
#include "shared/control/messages.h"

namespace wsync::agent {

class LoadedSums {
 public:
  // A rank of the replica that is attached.
  struct Rank {
    std::uint32_t rank = 0;
    bool returns_sums = true;   // it has copied into memory of its own
    bool takes_layers = false;  // by a patch: all bytes of the layers that it changes
    std::shared_ptr<const std::vector<control::EngineTensor>> tensors;
    std::shared_ptr<const PreparedLoad> load;  // of the version; null: it was not prepared for it
  };

  // A load of the replica begins: nothing has been compared.
  void begin(const std::string& replica) { loads_.erase(replica); }
  // What a rank has returned.
  struct Sums {
    std::vector<SplitSum> now;     // control::Loaded::sums
    std::vector<SplitSum> before;  // likewise
  };
  // `rank` has loaded `version`, as it was told by the load that runs. `ranks`: all of the replica.
  // `patch`: the one by which it was loaded; null: in full. Returns a difference if this was the
  // last of them, or why its sums cannot be used.
  [[nodiscard]] std::optional<reload::SumMismatch> add(const std::string& replica,
                                                       std::uint32_t rank, Sums sums,
                                                       const std::vector<Rank>& ranks,
                                                       const staging::HeldVersion& version,
                                                       const staging::HeldPatch* patch = nullptr,
                                                       const staging::HeldVersion* base = nullptr);
  // Whether the sums of all ranks were compared in the load that began last, which was of this
  // version, and were equal.
  [[nodiscard]] bool is_equal(const std::string& replica, const Version& version) const;
  // A rank of the replica is gone, so its load has failed or is void.
  void forget(const std::string& replica) { loads_.erase(replica); }

 private:
  struct Load {
    std::map<std::uint32_t, Sums> sums;  // by rank
    std::optional<Version> equal;        // to which the sums of all ranks are
  };
  std::map<std::string, Load> loads_;  // by replica
};

}  // namespace wsync::agent
