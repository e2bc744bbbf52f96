#pragma once

#include "kernels/element.hpp"

#include <cuda_runtime.h>
#include <cstddef>
#include <cstdint>

// Internal to the CUDA sources: how warps access consecutive elements.
namespace penstock::kernels {

inline constexpr unsigned warp_threads = 32;

/// The most bytes that one instruction accesses. Operands at multiples of it are accessed in groups of elements.
inline constexpr unsigned wide_access = 16;

/// The elements of a group in kernels that write operands of type Written, the widest of them: 16 bytes. A warp then
/// fills whole 32-byte sectors with every store. (An operand that is only read may be wider: what the first of two
/// accesses has left of a sector is in L1 for the second.)
template <class Written>
inline constexpr unsigned group_of = wide_access / sizeof(Written);

/// The number of this thread's warp in the grid, and the number of all warps.
__device__ inline std::uint64_t first_warp() {
  return (std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x) / warp_threads;
}
__device__ inline std::uint64_t warps() {
  return std::uint64_t{gridDim.x} * blockDim.x / warp_threads;
}

/// Whether groups of the operands can be accessed with one instruction.
template <class... Operands>
__device__ bool are_wide(const Operands*... operands) {
  return (reinterpret_cast<std::uintptr_t>(operands) | ...) % wide_access == 0;
}

template <std::size_t bytes>
struct WordsOf;
template <>
struct WordsOf<4> {
  using Type = unsigned;
};
template <>
struct WordsOf<8> {
  using Type = uint2;
};
template <>
struct WordsOf<16> {
  using Type = uint4;
};

/// Reads n elements with one instruction.
template <unsigned n, class T>
__device__ void load_group(const T* from, T* to) {
  const auto words = *reinterpret_cast<const typename WordsOf<n * sizeof(T)>::Type*>(from);
  __builtin_memcpy(to, &words, sizeof words);
}
/// Writes n elements with one instruction. In assembly, because the compiler divides some assignments into several.
template <unsigned n, class T>
__device__ void store_group(const T* from, T* to) {
  typename WordsOf<n * sizeof(T)>::Type words;
  __builtin_memcpy(&words, from, sizeof words);
  const auto address = __cvta_generic_to_global(to);
  if constexpr (sizeof words == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
  } else {
    static_assert(sizeof words == 8);
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" : : "l"(address), "r"(words.x), "r"(words.y) : "memory");
  }
}

/// The elements that one thread of a warp processes, of `slots` × 32 consecutive ones, in slots 0, 1, …: groups of
/// `group` neighbours, so that each access of a warp is to consecutive bytes. If it is not full, the slots of elements
/// from `end` on are empty, and groups are accessed element by element.
template <unsigned group, unsigned slots, bool full>
struct Slots {
  static constexpr unsigned count = slots, warp_elements = slots * warp_threads;
  static constexpr bool is_full = full;
  unsigned begin, end;  ///< of the warp's elements, in its operands

  [[nodiscard]] __device__ unsigned element(unsigned k) const {
    return begin + k / group * (group * warp_threads) + threadIdx.x % warp_threads * group + k % group;
  }
  [[nodiscard]] __device__ bool holds(unsigned k) const { return full || element(k) < end; }

  /// Reads elements of `from`; empty slots get zeros.
  template <class T>
  __device__ void load(const T* from, T (&to)[slots]) const {
#pragma unroll
    for (unsigned k = 0; k < slots; k += step<T>) {
      if constexpr (full) {
        load_group<step<T>>(from + element(k), &to[k]);
      } else {
        to[k] = holds(k) ? from[element(k)] : T{};
      }
    }
  }
  template <class T>
  __device__ void store(const T (&from)[slots], T* to) const {
#pragma unroll
    for (unsigned k = 0; k < slots; k += step<T>) {
      if constexpr (full) {
        store_group<step<T>>(&from[k], to + element(k));
      } else if (holds(k)) {
        to[element(k)] = from[k];
      }
    }
  }

 private:
  /// The elements of one access.
  template <class T>
  static constexpr unsigned step = !full                              ? 1
                                   : group * sizeof(T) <= wide_access ? group
                                                                      : wide_access / sizeof(T);
};

/// Calls body(first, slots) until the grid has processed all of `count` elements, each warp those from `first` on.
/// Operands of full slots are accessed in `groups` groups of `group` elements.
template <unsigned group, unsigned groups, class Body>
__device__ void for_slots(bool wide, std::uint64_t count, const Body& body) {
  using Full = Slots<group, groups * group, true>;
  using Rest = Slots<1, 4, false>;
  for (std::uint64_t first = first_warp() * Full::warp_elements; first < count;
       first += warps() * Full::warp_elements) {
    const auto length = static_cast<unsigned>(min(count - first, std::uint64_t{Full::warp_elements}));
    if (wide && length == Full::warp_elements) {
      body(first, Full{0, length});
      continue;
    }
#pragma unroll 1
    for (Rest slots{0, length}; slots.begin < length; slots.begin += Rest::warp_elements) body(first, slots);
  }
}

}  // namespace penstock::kernels
