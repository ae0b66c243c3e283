# HOCCL_CHECK_JANSSON: jansson 2.13 or newer (Debian: libjansson-dev).
AC_DEFUN([HOCCL_CHECK_JANSSON], [
  PKG_CHECK_MODULES([JANSSON], [jansson >= 2.13])
])
