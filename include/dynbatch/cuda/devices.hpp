// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which CUDA devices this process can use, without including a CUDA header.
#include <dynbatch/base/config.hpp>

#include <cstddef>
#include <cstdint>

namespace dynbatch::inline DYNBATCH_ABI {

/// Outcome of a call into the CUDA part.
enum class CudaErrc : std::uint8_t {
  Ok = 0,
  NoDevice = 1,       ///< A driver is there, a device is not.
  DriverMissing = 2,  ///< No driver, or one older than the runtime.
  Error = 3,          ///< Anything else; CudaStatus::code says what.
};

/// Result of a call into the CUDA part: our verdict, and the runtime's error code behind it.
struct CudaStatus {
  CudaErrc errc = CudaErrc::Ok;
  int code = 0;  ///< Value of cudaError_t; 0 is success.

  /// True where the call did what it should.
  [[nodiscard]] constexpr bool ok() const noexcept { return errc == CudaErrc::Ok; }
};

/// Static text for a verdict, for reports.
[[nodiscard]] constexpr const char* to_string(CudaErrc errc) noexcept {
  switch (errc) {
    case CudaErrc::Ok:
      return "ok";
    case CudaErrc::NoDevice:
      return "no device";
    case CudaErrc::DriverMissing:
      return "no driver, or one too old";
    case CudaErrc::Error:
      break;
  }
  return "error";
}

/// One device, as the runtime describes it.
struct DeviceInfo {
  int index = 0;                   ///< What cudaSetDevice takes.
  int sm = 0;                      ///< Compute capability, major x 10 + minor: 90 for H100.
  int num_sms = 0;                 ///< Streaming multiprocessors.
  std::uint64_t memory_bytes = 0;  ///< Total device memory.
  char name[256] = {};             ///< Null-terminated.
};

/// The devices of this process; a plain value that needs no allocation.
struct DeviceList {
  /// More devices than one host holds today; further ones are counted, not described.
  static constexpr std::size_t kCapacity = 32;

  CudaStatus status;              ///< Not Ok: the list is empty, or ends before the failing device.
  std::size_t num_devices = 0;    ///< Described in `devices`.
  std::size_t num_reported = 0;   ///< What the runtime counted, at least num_devices.
  DeviceInfo devices[kCapacity];  ///< The first num_devices are set.
};

/// Asks the CUDA runtime for its devices. Any thread; may take long on the first call, because the
/// driver starts up; creates no context.
[[nodiscard]] DYNBATCH_API DeviceList list_devices() noexcept;

/// Runs one trivial kernel on a device and compares its answer, so that a build without code for
/// that device is found before real work is. Blocks until done; changes no current device.
[[nodiscard]] DYNBATCH_API CudaStatus check_device(int device_idx) noexcept;

}  // namespace dynbatch::inline DYNBATCH_ABI
