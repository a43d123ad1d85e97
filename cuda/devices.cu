// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/cuda/devices.hpp>

#include <cstring>
#include <cuda_runtime_api.h>

namespace dynbatch::inline DYNBATCH_ABI {

namespace {

// Differs from lane to lane, so that a kernel that didn't run can't give the answer by chance.
__host__ __device__ constexpr unsigned answer_of(unsigned lane) { return lane * 2654435761U + 1U; }

constexpr unsigned kLanes = 32;

// answers: [kLanes]
__global__ void answer(unsigned* answers) { answers[threadIdx.x] = answer_of(threadIdx.x); }

CudaStatus status_of(cudaError_t error) noexcept {
  CudaErrc errc = CudaErrc::Error;
  switch (error) {
    case cudaSuccess:
      errc = CudaErrc::Ok;
      break;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      errc = CudaErrc::NoDevice;
      break;
    case cudaErrorInsufficientDriver:
      errc = CudaErrc::DriverMissing;
      break;
    default:
      break;
  }
  return {.errc = errc, .code = static_cast<int>(error)};
}

cudaError_t describe(int device_idx, DeviceInfo& info) noexcept {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, device_idx);
  if (error != cudaSuccess) {
    return error;
  }
  info.index = device_idx;
  info.sm = properties.major * 10 + properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.memory_bytes = properties.totalGlobalMem;
  static_assert(sizeof(info.name) >= sizeof(properties.name));
  std::memcpy(info.name, properties.name, sizeof(properties.name));
  info.name[sizeof(info.name) - 1] = '\0';
  return cudaSuccess;
}

// The kernel's answers, compared on the host. `answers` is device memory of kLanes words.
cudaError_t run_and_compare(unsigned* answers) noexcept {
  unsigned host[kLanes] = {};
  // Its own stream: the legacy stream would wait for the host's other work.
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    return error;
  }
  answer<<<1, kLanes, 0, stream>>>(answers);
  error = cudaGetLastError();
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(host, answers, sizeof(host), cudaMemcpyDeviceToHost, stream);
  }
  if (error == cudaSuccess) {
    error = cudaStreamSynchronize(stream);
  }
  const cudaError_t destroyed = cudaStreamDestroy(stream);
  if (error != cudaSuccess) {
    return error;
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    if (host[lane] != answer_of(lane)) {
      return cudaErrorUnknown;
    }
  }
  return destroyed;
}

}  // namespace

DeviceList list_devices() noexcept {
  DeviceList list;
  // Without a driver the runtime leaves the count as it was.
  int count = 0;
  list.status = status_of(cudaGetDeviceCount(&count));
  if (!list.status.ok()) {
    // The runtime remembers the error; nobody else should find it.
    static_cast<void>(cudaGetLastError());
    return list;
  }
  if (count <= 0) {
    list.status = status_of(cudaErrorNoDevice);
    return list;
  }
  list.num_reported = static_cast<std::size_t>(count);
  for (int i = 0; i < count && list.num_devices < DeviceList::kCapacity; ++i) {
    const cudaError_t error = describe(i, list.devices[list.num_devices]);
    if (error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      list.status = status_of(error);
      return list;
    }
    ++list.num_devices;
  }
  return list;
}

CudaStatus check_device(int device_idx) noexcept {
  int previous = 0;
  cudaError_t error = cudaGetDevice(&previous);
  if (error == cudaSuccess) {
    error = cudaSetDevice(device_idx);
  }
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return status_of(error);
  }
  unsigned* answers = nullptr;
  error = cudaMalloc(&answers, kLanes * sizeof(unsigned));
  if (error == cudaSuccess) {
    error = run_and_compare(answers);
    const cudaError_t freed = cudaFree(answers);
    error = error != cudaSuccess ? error : freed;
  }
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
  const cudaError_t restored = cudaSetDevice(previous);
  return status_of(error != cudaSuccess ? error : restored);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
