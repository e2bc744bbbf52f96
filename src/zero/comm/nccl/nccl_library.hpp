#pragma once

#include <penstock/base/result.hpp>

#include <nccl.h>
#include <string>

// The functions of NCCL that are called here.
#define PENSTOCK_NCCL_FUNCTIONS(call) \
  call(ncclGetVersion);               \
  call(ncclGetErrorString);           \
  call(ncclGetLastError);             \
  call(ncclGetUniqueId);              \
  call(ncclCommInitRankConfig);       \
  call(ncclCommGetAsyncError);        \
  call(ncclCommFinalize);             \
  call(ncclCommDestroy);              \
  call(ncclCommAbort);                \
  call(ncclAllGather);                \
  call(ncclReduceScatter);            \
  call(ncclSend);                     \
  call(ncclRecv);                     \
  call(ncclMemAlloc);                 \
  call(ncclMemFree);                  \
  call(ncclGroupStart);               \
  call(ncclGroupEnd)

// Those of 2.27, which are null in an older library.
#define PENSTOCK_NCCL_FUNCTIONS_2_27(call) \
  call(ncclCommWindowRegister);            \
  call(ncclCommWindowDeregister)

namespace penstock::zero {

/// The functions of NCCL, found at run time under their own names: a program that links Penstock starts without NCCL.
///
///     PENSTOCK_TRY_ASSIGN(const NcclLibrary* nccl, NcclLibrary::instance());
///     nccl->ncclGroupStart();
struct NcclLibrary {
  /// Earlier ones mix up non-blocking communicators (release notes of 2.26.2).
  static constexpr int oldest = NCCL_VERSION(2, 26, 2);

  /// That of the process: the file that the environment variable PENSTOCK_NCCL names, else libnccl.so.2 as the dynamic
  /// linker finds it. Loaded by the first call and never unloaded; every call returns the same. Safe from any thread.
  ///
  /// Errors: those of load().
  [[nodiscard]] static Result<const NcclLibrary*> instance();
  /// Loads `file`, which is not unloaded any more.
  ///
  /// Errors: unsupported, for a file that cannot be loaded, lacks a function, or is older than `oldest`.
  [[nodiscard]] static Result<NcclLibrary> load(const std::string& file);

#define PENSTOCK_NCCL_MEMBER(function) decltype(&::function) function = nullptr
  PENSTOCK_NCCL_FUNCTIONS(PENSTOCK_NCCL_MEMBER);
  PENSTOCK_NCCL_FUNCTIONS_2_27(PENSTOCK_NCCL_MEMBER);
#undef PENSTOCK_NCCL_MEMBER
};

}  // namespace penstock::zero
