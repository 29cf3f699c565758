"""
The smallest possible webhook, which reads a review and allows it. It measures the time of Flask and gunicorn alone.
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request


def create_app() -> Flask:
    """An application that allows every review without changes."""
    app = Flask("empty")

    @app.post("/mutate")
    def mutate() -> Response:
        review = request.get_json()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return jsonify(apiVersion="admission.k8s.io/v1", kind="AdmissionReview", response=response)

    return app
