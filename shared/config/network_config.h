// How a process reaches others and is reached: the keys transport, data_address, advertise and
// data_security.
#pragma once

#include <string>

#include "shared/base/kinds.h"

namespace wsync::config {

struct NetworkConfig {
  std::string transport;  // the only permitted kind (shared/transport); empty: every kind
  // Where this process serves weights. Beyond loopback, other hosts reach it.
  std::string data_address = "tcp://127.0.0.1:0";
  // The host by which others reach data_address; empty: that of data_address.
  std::string advertise;
  DataSecurity data_security = DataSecurity::kTls;
  friend bool operator==(const NetworkConfig&, const NetworkConfig&) = default;
};

}  // namespace wsync::config
