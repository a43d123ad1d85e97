// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/cuda/devices.hpp>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>

namespace {

// Prints why the device part of a test is left out; true if it is.
bool skipped_without_device(const dynbatch::DeviceList& list) {
  if (list.num_devices > 0) {
    return false;
  }
  std::printf("SKIPPED: %s (cudaError %d)\n", to_string(list.status.errc), list.status.code);
  return true;
}

}  // namespace

TEST_CASE("a device list is consistent with its status", "[cuda]") {
  const dynbatch::DeviceList list = dynbatch::list_devices();
  INFO("status " << to_string(list.status.errc) << ", cudaError " << list.status.code);
  CHECK(list.status.errc != dynbatch::CudaErrc::Error);
  CHECK(list.status.ok() == (list.status.code == 0));
  CHECK(list.status.ok() == (list.num_devices > 0));
  CHECK(list.num_reported >= list.num_devices);
}

TEST_CASE("listing twice gives the same answer", "[cuda]") {
  const dynbatch::DeviceList first = dynbatch::list_devices();
  const dynbatch::DeviceList second = dynbatch::list_devices();
  CHECK(first.num_devices == second.num_devices);
  CHECK(first.status.code == second.status.code);
}

TEST_CASE("a device that does not exist is refused by value", "[cuda]") {
  const dynbatch::CudaStatus status = dynbatch::check_device(1000);
  CHECK_FALSE(status.ok());
  CHECK(status.code != 0);
}

TEST_CASE("each listed device has a name, memory and multiprocessors", "[cuda]") {
  const dynbatch::DeviceList list = dynbatch::list_devices();
  if (skipped_without_device(list)) {
    return;
  }
  for (std::size_t i = 0; i < list.num_devices; ++i) {
    const dynbatch::DeviceInfo& device = list.devices[i];
    INFO("device " << i << ": " << device.name);
    CHECK(device.index == static_cast<int>(i));
    CHECK(std::strlen(device.name) > 0);
    CHECK(device.sm >= 50);
    CHECK(device.num_sms > 0);
    CHECK(device.memory_bytes > 0);
  }
}

TEST_CASE("a kernel of this build runs on each device it is built for", "[cuda]") {
  const dynbatch::DeviceList list = dynbatch::list_devices();
  if (skipped_without_device(list)) {
    return;
  }
  for (std::size_t i = 0; i < list.num_devices; ++i) {
    INFO("device " << i << ": " << list.devices[i].name);
    if (list.devices[i].sm >= 80) {
      const dynbatch::CudaStatus status = dynbatch::check_device(list.devices[i].index);
      INFO("cudaError " << status.code);
      CHECK(status.ok());
    }
  }
}
