// What nearly every source file includes: the standard headers and those of base. A source file still includes what it
// uses itself.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <tl/expected.hpp>

#include "penstock/base/dtype.hpp"
#include "penstock/base/executor.hpp"
#include "penstock/base/result.hpp"
#include "penstock/base/span.hpp"
#include "penstock/base/time.hpp"
#include "penstock/base/units.hpp"
