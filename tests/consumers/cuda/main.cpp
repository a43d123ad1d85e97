// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/cuda/devices.hpp>

#include <cstdio>

int main() {
  const dynbatch::DeviceList list = dynbatch::list_devices();
  std::printf("%zu devices, %s\n", list.num_devices, to_string(list.status.errc));
  return list.status.errc == dynbatch::CudaErrc::Error ? 1 : 0;
}
