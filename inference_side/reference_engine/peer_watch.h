// PeerWatch: notices that the peer of a connection is gone while the connection's own thread is
// busy inside a step.
#pragma once

#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "shared/base/unique_fd.h"

namespace wsync::engine::reference {

class PeerWatch {
 public:
  // Calls `gone` at most once, on the watch's own thread, with the index of a socket whose peer has
  // closed it or died. The sockets are borrowed. The watch reads no data from them.
  PeerWatch(std::vector<int> sockets, std::function<void(std::size_t index)> gone);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  void run(const std::vector<int>& sockets);
  std::function<void(std::size_t index)> gone_;
  UniqueFd end_;  // an eventfd
  std::thread thread_;
};

}  // namespace wsync::engine::reference
