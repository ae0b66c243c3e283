# HOCCL_CHECK_HWLOC: hwloc 2.5 or newer (Debian: libhwloc-dev).
AC_DEFUN([HOCCL_CHECK_HWLOC], [
  PKG_CHECK_MODULES([HWLOC], [hwloc >= 2.5])
])
